"""What a rank and a server tell each other arrives as it was sent, and what is counted of it is that."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch

from fsbench.axes import Server
from fsbench.collect.timeline import Timeline
from fsbench.errors import FsbenchError
from fsbench.roles import ServerProcess
from fsbench.train.channels import MOST_NUMBERS, Pairs
from fsbench.train.serving import serve_ranks
from tests import support
from tests.scripted import Scripted

pytestmark = pytest.mark.timeout(90)

KEEPER = ServerProcess("embedding", "keeper", 0, 1)
NUMBER = 1
"""Of the server's process, beside one rank."""


def open_lane(store):
    """A rank's lane to the server; returns when the server has come."""
    (lane,) = Pairs(store, 1, support.LIMIT).lanes([KEEPER], 0, Timeline([KEEPER.lane]))["keeper"]
    return lane


@pytest.fixture(scope="module")
def ends():
    """A rank's lane to a server, and the server's channel to it."""
    store = torch.distributed.HashStore()
    with ThreadPoolExecutor(1) as server:
        coming = server.submit(Pairs(store, 1, support.LIMIT).channels, KEEPER, NUMBER)
        lane = open_lane(store)
        (channel,) = coming.result()
        yield lane, channel
        last = server.submit(channel.next_request)
        lane.close()
    assert last.result() is None


int64 = st.integers(-(2**63), 2**63 - 1)


@given(numbers=st.lists(int64, min_size=1, max_size=MOST_NUMBERS))
def test_a_request_arrives_as_it_is(ends, numbers):
    lane, channel = ends
    sent = lane.submit(lambda: lane.channel.request(*numbers), kind="requests")
    assert channel.next_request() == numbers
    sent.wait()


@pytest.mark.parametrize("count", [0, MOST_NUMBERS + 1])
def test_a_request_of_no_or_too_many_numbers_is_refused(ends, count):
    with pytest.raises(FsbenchError, match=f"a request of {count} numbers; expected 1 to {MOST_NUMBERS}"):
        ends[0].channel.request(*[7] * count)


def exchange(ends, out, back):
    """What arrives of `out`, sent to the server, and of `back`, sent by it."""
    lane, channel = ends

    def rank():
        lane.channel.send(out, kind="ids")
        return lane.channel.receive(back.shape, back.dtype, kind="rows")

    answered = lane.submit(rank, kind="rows")
    arrived = channel.receive(out.shape, out.dtype, kind="ids")
    channel.send(back, kind="rows")
    return arrived, answered.wait()


def test_what_is_counted_of_a_pair_is_what_went_either_way(ends):
    out, back = torch.arange(6, dtype=torch.int32), torch.arange(20.0, dtype=torch.float64).view(4, 5).T
    for end in ends:
        end.log.clear()
    arrived, answer = exchange(ends, out, back)
    assert arrived.equal(out)
    assert answer.equal(back)
    lane, channel = ends
    assert lane.log.sequence() == [("send", "ids", 24), ("receive", "rows", 160)]
    assert channel.log.sequence() == [("receive", "ids", 24), ("send", "rows", 160)]
    assert lane.log.sent() == {"ids": 24, "rows": 160}  # servers hand in no record: the rank's is the only one
    assert (lane.log.crossing(), lane.log.received()) == ((24, 2), 160)


def test_a_tensor_without_elements_costs_no_operation(ends):
    for end in ends:
        end.log.clear()
    nothing = torch.empty(0, 3)
    for arrived in exchange(ends, nothing, nothing):
        assert (arrived.shape, arrived.dtype) == (nothing.shape, nothing.dtype)
    assert [end.log.sequence() for end in ends] == [[], []]


class Keeper(Server):
    """Fails when it is asked for 13, and remembers what its log held when it was asked."""

    def __init__(self) -> None:
        self.logged = []

    def answer(self, rank, request, channel):
        self.logged.append(len(channel.log.sequence()))
        if request == [13]:
            raise ArithmeticError("unlucky")
        channel.send(torch.tensor(request), kind="rows")


def serve_in(thread, store, keeper, on_poll=lambda answered: None):
    strategy = support.strategies().embedding
    strategy.serve = lambda context: keeper
    where = {"ranks": 1, "number": NUMBER, "seed": 0, "store": store, "timeout": support.LIMIT}
    return thread.submit(serve_ranks, strategy, KEEPER, Scripted("same", 1, "sgd"), **where, on_poll=on_poll)


def ask(lane, number):
    def job():
        lane.channel.request(number)
        return lane.channel.receive((1,), torch.int64, kind="rows").item()

    return lane.submit(job, kind="rows")


def test_a_server_answers_until_its_ranks_have_ended_and_keeps_no_log_of_it():
    store, keeper, polls = torch.distributed.HashStore(), Keeper(), []
    with ThreadPoolExecutor(1) as thread:
        serving = serve_in(thread, store, keeper, polls.append)
        lane = open_lane(store)
        assert [ask(lane, number).wait() for number in (5, 6, 7)] == [5, 6, 7]
        assert not serving.done()
        lane.close()
        serving.result()
    assert keeper.logged == [1, 1, 1]
    assert polls[-1] == 3


def test_what_an_answer_raises_ends_the_serving():
    store = torch.distributed.HashStore()
    with ThreadPoolExecutor(1) as thread:
        serving = serve_in(thread, store, Keeper())
        ask(open_lane(store), 13)
        with pytest.raises(ArithmeticError, match="unlucky"):
            serving.result()
