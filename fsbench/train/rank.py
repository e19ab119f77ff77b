"""The process of one rank: `python -m fsbench.train.rank ORDER_FILE`. What a rank does is in `fsbench.train.work`."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path

from fsbench.errors import Unsupported
from fsbench.launch.handover import Order, write_error, write_stopped
from fsbench.launch.heartbeat import Heartbeat
from fsbench.launch.process import die_with_parent


def main() -> None:
    die_with_parent()
    if os.getppid() == 1:
        return  # The launcher died before it could be waited for.
    order_file = Path(sys.argv[1])
    folder = order_file.parent
    rank = int(os.environ["RANK"])
    heartbeat = Heartbeat(folder, rank)

    def stop(*_: object) -> None:
        write_stopped(folder, rank, heartbeat.last)
        os._exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    try:
        # Imports torch, which takes seconds: whatever must hold from the start is done by now.
        from fsbench.train.work import work

        work(Order.read(order_file), folder, rank, heartbeat)
    except BaseException as error:
        traceback.print_exc()
        write_error(folder, rank, heartbeat.last, _kind(error), error)
        # Lane threads may sit in a collective that no peer will join: there is nothing to wait for.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def _kind(error: BaseException) -> str:
    if isinstance(error, Unsupported):
        return "unsupported"
    no_memory = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return "oom" if no_memory or "not enough memory" in str(error) else "failed"


if __name__ == "__main__":
    main()
