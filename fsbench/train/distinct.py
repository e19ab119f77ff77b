"""De-duplication without a sort: each ID leaves a stamp at its place, and what it finds there tells who was last."""

from __future__ import annotations

import numpy as np
import torch


class Distinct:
    """Finds the distinct ones among IDs below `size`, in time that follows their number alone.

    It keeps a stamp an ID, 4 B each. What is read is always written before, so that nothing is ever cleared. Calls may
    run at once where their IDs are disjoint.
    """

    def __init__(self, size: int) -> None:
        self._stamps = np.zeros(size, np.int32)

    def __call__(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """int64[m] IDs to the distinct ones, int64[u], and the place of each ID among them, int64[m].

        In host memory they are in the order of their last occurrence, whatever the number of threads: numpy assigns in
        order. On a GPU, where a sort is fast and a scatter has no order, they ascend.
        """
        if ids.device.type != "cpu":
            return torch.unique(ids, return_inverse=True)
        given = ids.numpy()
        order = np.arange(len(given), dtype=np.int32)
        self._stamps[given] = order
        distinct = given[self._stamps.take(given) == order]
        self._stamps[distinct] = order[: len(distinct)]
        return torch.from_numpy(distinct), torch.from_numpy(self._stamps.take(given).astype(np.int64))
