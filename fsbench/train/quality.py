"""Quality of a finished run: what its workload measures, of the headline replica and of all others."""

from __future__ import annotations

from typing import Any

from fsbench.metrics.sheet import Sheet
from fsbench.train.clicks import ClickThrough
from fsbench.train.ranking import Ranking
from fsbench.train.session import Finished
from fsbench.workload import Evaluation

_ABSENT = (
    ((*Ranking.metrics, "popularity_ndcg_at_10"), "the workload measures no ranking"),
    (ClickThrough.metrics, "the workload predicts no clicks"),
)


def enter_quality(sheet: Sheet, finished: Finished) -> None:
    """Enters what the workload measures of the headline replica, and why metrics of other workloads are missing."""
    if finished.evaluation is not None:
        finished.evaluation.enter(sheet, next(iter(finished.evaluated.values())))
        finished.evaluation.enter_baseline(sheet)
    for names, reason in _ABSENT:
        sheet.withhold([name for name in names if name not in sheet.metrics], reason)


def evaluation_evidence(evaluation: Evaluation, finished: Finished) -> dict[str, Any]:
    """For the record: how quality was measured, on how many samples, and every replica's."""
    replicas = {}
    for name, rows in finished.evaluated.items():
        sheet = Sheet()
        evaluation.enter(sheet, rows)
        replicas[name] = sheet.metrics
    return {"protocol": evaluation.protocol, **evaluation.counts(), "replicas": replicas}
