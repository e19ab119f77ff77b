"""One writer a result set: a lock that the kernel keeps, so that it ends with its process, however that ends."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fsbench.errors import UserError

_LOCKS = Path("/proc/locks")


@contextmanager
def sole_writer(path: Path) -> Iterator[None]:
    """Holds `path`, which is made if it is not there, for this process while inside the context.

    Raises:
        UserError: another process holds it; the message says which.
        OSError: it cannot be opened, or its file system has no locks.
    """
    # Here, because Windows has none, where result sets can still be shown.
    import fcntl

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"{path.parent} is being written by {_holder(descriptor)}; wait for it, end it, or name another --out"
            ) from None
        yield
    finally:
        os.close(descriptor)


def _holder(descriptor: int) -> str:
    """`process 4711`, as the kernel lists it; where it does not say, that there is one."""
    file = os.fstat(descriptor)
    place = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    text = _LOCKS.read_text() if _LOCKS.exists() else ""
    found = re.search(rf"FLOCK +\w+ +WRITE +([1-9]\d*) +{place} ", text)
    return f"process {found[1]}" if found else "another process"
