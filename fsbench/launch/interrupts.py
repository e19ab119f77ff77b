"""Ctrl-C and its relatives while runs are under way."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Inside this context the signals that end fsbench are counted, and interrupt nothing.

    Whoever may be interrupted calls `check` where it can be ended in order; so no cleanup is ever cut in two, however
    often Ctrl-C is pressed. From the second time on there is `hurry`: what waits for others waits no longer.
    """

    def __init__(self) -> None:
        self._count = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        for number in _SIGNALS:
            # What is ignored stays so: `nohup` does that, and shells to what they start in the background.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._count_one)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if error is None:
            self.check()

    def _count_one(self, number: int, frame: FrameType | None) -> None:
        self._count += 1

    def check(self) -> None:
        """Raises:
        KeyboardInterrupt: there was a signal.
        """
        if self._count:
            raise KeyboardInterrupt

    def hurry(self) -> bool:
        return self._count > 1
