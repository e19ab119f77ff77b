"""The failures that fsbench explains in one line. Anything else is a bug and shows its traceback."""


class FsbenchError(Exception):
    """A failure with a message made for the user; `exit_code` is what the command line returns for it."""

    exit_code = 1


class UserError(FsbenchError):
    """Bad input: an unknown name, a malformed file, an impossible request. The message says what would be right."""

    exit_code = 2


class DataError(UserError):
    """Data that cannot be read. The message starts with `file:line:` where a line is to blame."""


class Unsupported(FsbenchError):
    """A valid request that cannot run here; the message is the reason."""


class WorkerFailed(FsbenchError):
    """What a worker thread of this rank raised, its `__cause__`; the message says which thread."""

    def __init__(self, worker: int, cause: BaseException) -> None:
        said = str(cause).strip()
        super().__init__(f"worker {worker}: {type(cause).__name__}{': ' if said else ''}{said}")
