"""The process of one rank: `python -m fsbench.train.rank ORDER_FILE`. What a rank does is in `fsbench.train.work`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from fsbench.launch.endings import exit_at_once
from fsbench.launch.handover import Order
from fsbench.launch.heartbeat import Heartbeat
from fsbench.launch.process import die_with_parent
from fsbench.launch.stacks import offer_stacks
from fsbench.train.last_words import LastWords


def main() -> None:
    die_with_parent()
    if os.getppid() == 1:
        return  # The launcher died before it could be waited for.
    order_file = Path(sys.argv[1])
    folder = order_file.parent
    rank = int(os.environ["RANK"])
    words = LastWords(folder, rank)
    try:
        heartbeat = Heartbeat(folder, rank)
        words.listen(heartbeat)
        offer_stacks(folder, rank)
        # Imports torch, which takes seconds: whatever must hold from the start is done by now.
        from fsbench.train.work import work

        work(Order.read(order_file), folder, rank, heartbeat)
    except BaseException as error:
        words.fail(error)
    exit_at_once(0)


if __name__ == "__main__":
    main()
