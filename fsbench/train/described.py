"""What a simulated machine must know of a workload that only its model and its batches tell: they need torch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from fsbench.samples import Int64, Samples
from fsbench.sim.cell import Described
from fsbench.workload import Workload


def describe(workload: Workload) -> Described:
    """Of a prepared workload."""
    dtype = getattr(torch, workload.dtype_name)
    model = workload.build_model(dtype)
    parameters = [parameter.numel() for parameter in model.parameters() if parameter.requires_grad]
    nothing = np.zeros(0, np.int64)

    def row_ids(samples: Samples) -> Mapping[str, Int64]:
        ids = workload.build_batch(samples, dtype).ids
        return {table.name: ids[table.name].numpy() if table.name in ids else nothing for table in workload.tables()}

    return Described(parameters, dtype.itemsize, row_ids)
