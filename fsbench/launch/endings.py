"""The end of a process whose plugins may have left threads running."""

from __future__ import annotations

import atexit
import os
import sys
import threading


def exit_at_once(code: int) -> None:
    """Ends the process if a thread is left that Python would wait for, perhaps for ever; else does nothing.

    Whatever was registered to run at exit is run. The threads are named on standard error.
    """
    main = threading.main_thread()
    left = [thread.name for thread in threading.enumerate() if thread is not main and not thread.daemon]
    if not left:
        return
    print(f"fsbench: warning: ended with threads of a plugin still running: {', '.join(left)}", file=sys.stderr)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
