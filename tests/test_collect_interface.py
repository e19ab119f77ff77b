"""What an interface carried against what was counted: the figures in the record, and when a run is refused for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")

from fsbench.collect import interface
from fsbench.collect.interface import LinkUse, Traffic, bypass, link_evidence
from fsbench.launch.cluster import Link
from fsbench.launch.heartbeat import Heartbeat
from fsbench.options import BitRate
from fsbench.train.report import build_report
from fsbench.train.session import TrainingRun
from fsbench.train.trainer import close_trainer
from tests import support

LINK = Link("veth0", BitRate(400_000_000), ranks_a_host=1)
HEADERS = 66 * 10


def use(payload: int, counted: int = 100_000, operations: int = 2, link: Link = LINK) -> LinkUse:
    """A rank whose interface sent `payload` bytes in ten packets."""
    return LinkUse(link, Traffic(payload + HEADERS, 10, 0, 0), counted, operations)


def test_counters_are_read_from_the_kernels_files(tmp_path, monkeypatch):
    folder = tmp_path / "veth0" / "statistics"
    folder.mkdir(parents=True)
    for name, value in (("tx_bytes", 7000), ("tx_packets", 5), ("rx_bytes", 300), ("rx_packets", 4)):
        (folder / name).write_text(f"{value}\n")
    monkeypatch.setattr(interface, "COUNTERS", tmp_path)
    assert Traffic.read("veth0") == Traffic(7000, 5, 300, 4)
    assert Traffic(7000, 5, 300, 4).since(Traffic(1000, 2, 100, 1)) == Traffic(6000, 3, 200, 3)


def test_the_payload_of_a_packet_is_what_its_headers_leave():
    assert Traffic(7000, 5, 300, 4).sent_payload == 7000 - 5 * 66


def test_figures_of_all_hosts_are_added_up():
    assert link_evidence([use(100_100), use(51_400, counted=50_000)]) == {
        "rate": 400_000_000,
        "counted_bytes": 150_000,
        "interface_bytes": 151_500,
        "packets": 20,
        "ratio": 1.01,
        "warning": None,
        "unchecked": None,
    }


@pytest.mark.parametrize("payload", [0, 94_999])
def test_less_than_95_percent_on_any_host_means_that_bytes_went_another_way(payload):
    assert bypass([use(100_000), use(payload)]) == (
        f"bytes bypassed the link: counted 100000, the interface carried {payload}"
    )


def test_95_percent_are_enough():
    assert bypass([use(95_000), use(100_000)]) is None


@pytest.mark.parametrize(("payload", "refused"), [(0, True), (94_999, True), (95_000, False), (300_000, False)])
def test_bytes_from_servers_must_have_come_over_the_interface(payload, refused):
    """What other ranks sent is not among them, so that more may have come."""
    traffic = Traffic(100_000 + HEADERS, 10, payload + HEADERS, 10)
    served = LinkUse(LINK, traffic, 100_000, 2, counted_received=100_000)
    figures = f"counted 100000, the interface carried 100000; from servers 100000, it received {payload}"
    assert bypass([use(100_000), served]) == (f"bytes bypassed the link: {figures}" if refused else None)


def test_bytes_from_servers_are_added_up_for_the_ranks_of_a_host():
    shared = replace(LINK, ranks_a_host=2)

    def of_rank(counted_received):
        traffic = Traffic(200_000 + HEADERS, 10, 150_000 + HEADERS, 10)
        return LinkUse(shared, traffic, 100_000, 2, counted_received)

    assert bypass([of_rank(100_000), of_rank(50_000)]) is None
    assert "from servers 200000, it received 150000" in bypass([of_rank(100_000), of_rank(100_000)])


def test_more_than_5_percent_and_512_bytes_an_operation_is_a_warning_with_both_figures():
    most = 105_000 + 2 * 512
    assert link_evidence([use(most)])["warning"] is None
    assert link_evidence([use(most), use(most + 1)])["warning"] == (
        f"more on the link than was counted: counted 100000, the interface carried {most + 1}"
    )


def test_ranks_of_one_host_share_its_interface_and_are_checked_together():
    shared = replace(LINK, ranks_a_host=2)
    uses = [use(payload, link=shared) for payload in (200_000, 200_000, 204_000, 204_000)]
    assert bypass(uses) is None
    found = link_evidence(uses)
    assert (found["counted_bytes"], found["interface_bytes"], found["packets"]) == (400_000, 404_000, 20)
    assert (found["ratio"], found["warning"], found["unchecked"]) == (1.01, None, None)
    assert bypass([*uses[:2], use(189_999, link=shared), use(189_999, link=shared)]) == (
        "bytes bypassed the link: counted 200000, the interface carried 189999"
    )


def test_a_run_that_sends_nothing_has_no_ratio():
    found = link_evidence([use(0, counted=0, operations=0)])
    assert (found["ratio"], found["unchecked"]) == (None, "nothing was sent to another host")


def report_of_a_link_that_carried(rank: int, ranks: int, folder, share: float) -> dict | None:
    trainer = support.open_cell(rank, ranks)
    finished = TrainingRun(trainer, 4, Heartbeat(folder, rank)).execute()
    report = build_report(trainer, replace(finished, link_use=use(int(share * 100_000))))
    close_trainer(trainer)
    return report


@pytest.mark.distributed
def test_a_run_whose_bytes_bypassed_the_link_failed_and_has_no_metrics(ranks, tmp_path):
    report = ranks.run(report_of_a_link_that_carried, 2, tmp_path, 0.01)[0]
    assert report.keys() == {"status", "reason", "observed"}
    assert report["status"] == "failed"
    assert report["reason"] == "bytes bypassed the link: counted 100000, the interface carried 1000"
    assert report["observed"]["link"]["ratio"] == 0.01


@pytest.mark.distributed
def test_a_run_whose_bytes_crossed_the_link_has_the_proof_beside_its_metrics(ranks, tmp_path):
    report = ranks.run(report_of_a_link_that_carried, 2, tmp_path, 1.0)[0]
    assert "status" not in report
    assert report["metrics"]["step_ms_p50"] > 0
    assert report["observed"]["link"]["ratio"] == 1.0
