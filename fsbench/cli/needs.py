"""What a command needs that is not installed with it."""

from __future__ import annotations

import importlib.util

from fsbench.errors import UserError


def require_torch() -> None:
    """Raises:
    UserError: PyTorch is not installed. It is looked for, not imported.
    """
    if importlib.util.find_spec("torch") is None:
        raise UserError("training needs PyTorch, which is not installed; pip install 'fsbench[cpu]'")
