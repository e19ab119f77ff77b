"""What moved the bytes: from a profiler's records, by the range of the operation and never by a name alone."""

from __future__ import annotations

import itertools

import pytest

from fsbench.metrics.movers import IncompleteTrace, Moved, Operations, judge, moved, range_name
from fsbench.options import Spec
from fsbench.plugins import create

EXCHANGE, DENSE = Operations("exchange", "all_to_all"), Operations("dense", "all_reduce")

# As torch.profiler has them, and issues of NCCL and PyTorch quote them.
RING = ("kernel", "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
SEND_RECEIVE = ("kernel", "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)")
ALL_REDUCE = ("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
SYMMETRIC = ("kernel", "ncclSymkDevKernel_AllGather_STMC(ncclSymkDevWorkArgs4K)")
BARRIER = ("kernel", "void c10d::symmetric_memory::barrier_kernel(unsigned int**, int, int, int, unsigned long)")
PEER = ("gpu_memcpy", "Memcpy PtoP (Device -> Device)")
INSIDE = ("gpu_memcpy", "Memcpy DtoD (Device -> Device)")
GEMM = ("kernel", "nvjet_hsh_192x192_64x4_2x1_v_bz_coopB_NNT")


class Trace:
    """Events in Chrome's format: one thread launches, and what it launched runs 5 us later."""

    def __init__(self):
        self.events = []
        self.now = 1000.0
        self.correlations = itertools.count(1)

    def launch(self, kind, name, tid=7, late=5.0):
        correlation = {"correlation": next(self.correlations)}
        call = "cudaMemcpyAsync" if kind == "gpu_memcpy" else "cudaLaunchKernel"
        self.add("cuda_runtime", call, self.now, 2.0, tid, args=correlation)
        self.add(kind, name, self.now + late, 30.0, tid=20, args=correlation)
        self.now += 10
        return self

    def add(self, category, name, begin, duration, tid=7, **more):
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid, "ts": begin, "dur": duration, **more}
        )

    def operation(self, operations, *records, tid=7, late=5.0):
        begin = self.now
        self.now += 1
        for kind, name in records:
            self.launch(kind, name, tid, late)
        self.add("user_annotation", range_name(operations.lane, operations.name), begin, self.now - begin, tid)
        self.now += 1
        return self


def verdict(spec, trace, ranks=2):
    return judge(create("collectives", Spec.parse(spec)).engines(), moved(trace.events), ranks)


class TestAttribution:
    def test_what_is_launched_in_the_range_belongs_to_the_operation_whenever_it_runs(self):
        trace = Trace().operation(EXCHANGE, PEER, late=90_000.0).operation(DENSE, ALL_REDUCE)
        seen = moved(trace.events)
        assert dict(seen[EXCHANGE].records) == {PEER[1]: 1}
        assert dict(seen[DENSE].records) == {ALL_REDUCE[1]: 1}

    def test_what_is_launched_outside_belongs_to_none_also_while_the_operation_runs(self):
        trace = Trace().operation(EXCHANGE, PEER).launch(*GEMM)
        assert moved(trace.events)[EXCHANGE].by_kernels == 0

    def test_what_another_thread_launches_meanwhile_belongs_to_none(self):
        trace = Trace()
        begin = trace.now
        trace.launch(*GEMM, tid=8).launch(*PEER, tid=7)
        trace.add("user_annotation", range_name(*EXCHANGE), begin, 100.0)
        assert dict(moved(trace.events)[EXCHANGE].records) == {PEER[1]: 1}

    def test_copies_are_no_communication_without_a_range(self):
        assert moved(Trace().launch(*PEER).launch(*RING).events) == {}

    def test_other_annotations_and_events_without_a_span_are_ignored(self):
        trace = Trace().operation(EXCHANGE, PEER)
        trace.add("user_annotation", "ProfilerStep#3", 0.0, 9e9)
        trace.events.append({"ph": "M", "name": "process_name"})
        assert moved(trace.events) == {EXCHANGE: Moved(1, 0, 1, moved(trace.events)[EXCHANGE].records)}

    def test_kernels_by_which_ranks_meet_move_nothing(self):
        seen = moved(Trace().operation(EXCHANGE, BARRIER, PEER, BARRIER).events)[EXCHANGE]
        assert (seen.by_kernels, seen.by_copies) == (0, 1)
        assert seen.records[BARRIER[1]] == 2

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"ts": 0.0}, "no time"),
            ({"dur": -1.0}, "ends before it starts"),
            ({"ts": 999.0}, "runs before its launch at 1001.0"),
        ],
    )
    def test_records_that_contradict_themselves_tell_nothing(self, change, message):
        trace = Trace().operation(EXCHANGE, PEER)
        next(event for event in trace.events if event["cat"] == "gpu_memcpy").update(change)
        with pytest.raises(IncompleteTrace, match=message):
            moved(trace.events)


class TestVerdict:
    def test_copies_as_they_were_asked_for_are_well(self):
        trace = Trace().operation(EXCHANGE, PEER, INSIDE).operation(DENSE, ALL_REDUCE)
        assert verdict("copy-engine", trace) == verdict("copy-engine:by=peers", trace)
        assert verdict("copy-engine", trace).fallback is None
        assert verdict("copy-engine", trace).unknown == []

    @pytest.mark.parametrize("kernel", [RING, SEND_RECEIVE, SYMMETRIC])
    def test_a_kernel_where_copies_were_asked_for_is_a_fallback_that_is_named(self, kernel):
        trace = Trace().operation(EXCHANGE, PEER).operation(EXCHANGE, kernel)
        assert verdict("copy-engine", trace).fallback.startswith(
            "all_to_all on lane exchange asked for copy engines; 1 of 2 ran as "
        )
        assert kernel[1] in verdict("copy-engine", trace).fallback

    def test_copies_where_kernels_were_asked_for_are_one_too(self):
        found = verdict("backend", Trace().operation(EXCHANGE, PEER))
        assert found.fallback == (f"all_to_all on lane exchange asked for multiprocessors; 1 of 1 ran as {PEER[1]}")

    def test_a_kernel_that_copies_accompany_is_a_kernel(self):
        trace = Trace().operation(EXCHANGE, SEND_RECEIVE, INSIDE)
        assert verdict("backend", trace).fallback is None
        assert verdict("copy-engine", trace).fallback is not None

    def test_operations_of_which_nothing_is_seen_are_unknown_and_not_well(self):
        found = verdict("copy-engine", Trace().operation(EXCHANGE))
        assert found.fallback is None
        assert found.unknown == ["all_to_all on lane exchange: the profiler saw nothing in 1 operations"]

    def test_an_empty_one_among_others_is_no_matter(self):
        assert verdict("copy-engine", Trace().operation(EXCHANGE).operation(EXCHANGE, PEER)).unknown == []

    def test_what_a_strategy_asks_nothing_for_is_not_judged(self):
        assert verdict("host-staged", Trace().operation(EXCHANGE, PEER)).fallback is None

    def test_one_rank_has_nothing_to_move(self):
        found = verdict("backend", Trace().operation(EXCHANGE, INSIDE), ranks=1)
        assert found.fallback is None
        assert found.unknown == ["one rank: nothing moves between ranks"]


class TestRecord:
    def evidence(self, *traces):
        from fsbench.train.moved_by import Seen, engine_evidence

        pytest.importorskip("torch")
        seen = [trace if isinstance(trace, Seen) else Seen(moved(trace.events)) for trace in traces]
        return engine_evidence({"all_to_all": "copy engines"}, seen)

    def test_a_fallback_on_any_rank_is_one_of_the_run(self):
        as_asked, as_kernel = Trace().operation(EXCHANGE, PEER), Trace().operation(EXCHANGE, SYMMETRIC)
        assert self.evidence(as_asked, as_asked)[1] is None
        assert self.evidence(as_asked, as_kernel)[1].startswith("rank 1: all_to_all on lane exchange asked for copy")

    def test_what_ran_stands_in_the_record(self):
        evidence, _ = self.evidence(Trace().operation(EXCHANGE, BARRIER, PEER), Trace())
        assert evidence["operations"] == {
            "all_to_all on lane exchange": {
                "count": 1,
                "by_kernels": 0,
                "by_copies": 1,
                "unseen": 0,
                "records": {BARRIER[1]: 1, PEER[1]: 1},
            }
        }
        assert evidence["unknown"] == []

    def test_a_trace_that_tells_nothing_is_no_fallback_and_says_why(self):
        from fsbench.train.moved_by import Seen

        evidence, fallback = self.evidence(Seen(reason="the profiler's records are incomplete"), Trace())
        assert fallback is None
        assert evidence["unknown"] == ["the profiler's records are incomplete"]
