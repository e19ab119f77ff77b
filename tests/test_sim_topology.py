"""Which links bytes take, and how many of them the busiest has to carry."""

from __future__ import annotations

import numpy as np
import pytest

from fsbench.sim.topology import Topology, links_of

FOUR = Topology(4, 2)


def between(*pairs: tuple[int, int, int]) -> np.ndarray:
    matrix = np.zeros((4, 4), np.int64)
    for sender, receiver, size in pairs:
        matrix[sender, receiver] = size
    return matrix


@pytest.mark.parametrize(
    ("pairs", "inside", "rail", "across"),
    [
        ([(0, 0, 9)], 0, 0, 0),  # stays where it is
        ([(0, 1, 9)], 9, 0, 0),  # the same host
        ([(0, 2, 9)], 0, 9, 0),  # the same place in another host
        ([(0, 3, 9)], 0, 9, 9),  # another place there: the rail's way out, and beyond it
        ([(0, 2, 5), (0, 3, 4)], 0, 9, 4),  # one sender's ways out add up
        ([(0, 2, 5), (1, 2, 4)], 0, 9, 4),  # and so does what one receiver takes
        ([(0, 2, 5), (2, 0, 4)], 0, 5, 0),  # both directions at once
        ([(0, 1, 5), (2, 3, 4)], 5, 0, 0),  # two hosts at once
    ],
)
def test_an_exchange_loads_the_links_on_its_way(pairs, inside, rail, across):
    traffic = FOUR.all_to_all(between(*pairs))
    assert (traffic.inside, traffic.rail, traffic.across) == (inside, rail, across)


def test_an_exchange_sends_what_leaves_the_rank():
    assert FOUR.all_to_all(between((0, 0, 9), (0, 1, 2), (0, 3, 4), (2, 1, 8))).sent.tolist() == [6, 0, 8, 0]


def test_a_gather_passes_every_block_to_every_rank_and_shares_the_ways_out_of_a_host():
    traffic = FOUR.all_gather(10)
    assert traffic.sent.tolist() == [30] * 4
    assert (traffic.inside, traffic.rail, traffic.hops) == (30, 15, (2, 1))


def test_a_sum_passes_twice_and_counts_as_the_recorder_does():
    traffic = FOUR.all_reduce(11)
    assert traffic.sent.tolist() == [2 * 11 * 3 // 4] * 4
    assert (traffic.inside, traffic.rail, traffic.hops) == (16, 8, (2, 2))


def test_one_rank_alone_sends_nothing():
    alone = Topology(1, 1)
    for traffic in (alone.all_to_all(np.full((1, 1), 7)), alone.all_gather(7), alone.all_reduce(7)):
        assert traffic.sent.tolist() == [0]
        assert not any(links_of(traffic, "sm", 0.0))


def test_what_the_host_drives_goes_through_its_memory_and_not_between_devices():
    traffic = FOUR.all_to_all(between((0, 1, 9), (0, 2, 5)))
    assert links_of(traffic, "sm", 0.0) == {"host": 9, "rail": 5}
    assert links_of(traffic, "host", 14.0) == {"memory": 9, "rail": 5, "pcie": 14}
