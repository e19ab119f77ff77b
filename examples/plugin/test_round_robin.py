from fsbench.testing import strategy_checks

test_round_robin = strategy_checks("round-robin")
test_round_robin_in_blocks = strategy_checks("round-robin:block=3")
