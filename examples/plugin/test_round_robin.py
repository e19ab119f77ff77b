from fsbench.testing import strategy_checks

test_round_robin = strategy_checks("round-robin")
