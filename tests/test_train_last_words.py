"""How a rank ends early: what it says, to whom, and that only the first to speak is heard."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from fsbench.errors import Unsupported
from fsbench.launch.handover import RankError, read_errors
from fsbench.train.last_words import kind_of

SCRIPT = """
import os, signal, sys, threading
from pathlib import Path
from fsbench.errors import Unsupported
from fsbench.launch.heartbeat import Heartbeat
from fsbench.train import last_words

folder = Path({folder!r})
words = last_words.LastWords(folder, 1)
heartbeat = Heartbeat(folder, 1)
words.listen(heartbeat)
heartbeat.beat("train", 3, 6)
write = last_words.write_error
{code}
"""


def end(folder, code: str) -> tuple[int, str, list[RankError]]:
    """Exit code, what was printed, and what was said of a process that does this."""
    script = SCRIPT.format(folder=str(folder), code=code)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    return done.returncode, done.stderr, read_errors(folder)


@pytest.mark.parametrize(
    ("code", "kind", "message"),
    [
        ("words.fail(ValueError('no'))", "failed", "ValueError: no"),
        ("words.fail(MemoryError())", "oom", "MemoryError"),
        ("words.fail(Unsupported('needs a GPU'))", "unsupported", "needs a GPU"),
        ("threading.Thread(target=lambda: 1 / 0, name='b').start(); signal.pause()", "failed", "thread 'b': Zero"),
    ],
)
def test_a_failure_is_told_with_its_kind_phase_and_message_and_printed_with_its_traceback(
    tmp_path, code, kind, message
):
    exit_code, printed, (told,) = end(tmp_path, code)
    assert (exit_code, told.rank, told.kind, told.phase) == (1, 1, kind, "train 3/6")
    assert told.message.startswith(message)
    assert message.split("'")[0].removeprefix("thread ") in printed


def test_a_sigterm_is_told_apart(tmp_path):
    exit_code, _, (told,) = end(tmp_path, "os.kill(os.getpid(), signal.SIGTERM); signal.pause()")
    assert (exit_code, told.kind, told.phase) == (128 + signal.SIGTERM, "stopped", "train 3/6")


def test_a_sigterm_in_the_middle_of_the_last_words_does_not_cut_them_off(tmp_path):
    code = """
def interrupted(*arguments):
    os.kill(os.getpid(), signal.SIGTERM)
    write(*arguments)
last_words.write_error = interrupted
words.fail(ValueError("the cause"))
"""
    exit_code, _, (told,) = end(tmp_path, code)
    assert (exit_code, told.message) == (1, "ValueError: the cause")


def test_of_two_threads_that_fail_the_first_is_heard_to_the_end(tmp_path):
    code = """
first = threading.Event()
def slowly(folder, error):
    first.set()
    signal.sigtimedwait([], 0.2)  # time for the other one to be heard, were it listened to
    write(folder, error)
last_words.write_error = slowly
def fail():
    raise ValueError("the cause")
threading.Thread(target=fail, name="busy").start()
first.wait()
words.fail(ValueError("a consequence"))
"""
    exit_code, _, (told,) = end(tmp_path, code)
    assert (exit_code, told.message) == (1, "thread 'busy': ValueError: the cause")


def test_without_any_memory_left_the_error_is_still_told(tmp_path):
    code = """
from tests.faulty import take_all_memory
try:
    take_all_memory()
except MemoryError as error:
    words.fail(error)
"""
    exit_code, _, (told,) = end(tmp_path, code)
    assert (exit_code, told.kind, told.phase) == (1, "oom", "train 3/6")


def test_a_thread_that_exits_ends_nothing(tmp_path):
    code = "thread = threading.Thread(target=sys.exit); thread.start(); thread.join()"
    assert end(tmp_path, code) == (0, "", [])


def test_out_of_memory_has_many_names():
    assert kind_of(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")) == "oom"
    assert kind_of(OSError(12, "Cannot allocate memory")) == "oom"
    assert kind_of(RuntimeError("std::bad_alloc")) == "oom"
    assert kind_of(type("OutOfMemoryError", (RuntimeError,), {})("CUDA")) == "oom"
    assert kind_of(ValueError("memory of an elephant")) == "failed"
    assert kind_of(Unsupported("not enough memory")) == "unsupported"


def test_torchs_own_is_recognised():
    torch = pytest.importorskip("torch")
    with pytest.raises(RuntimeError) as error:
        torch.empty(2**55)
    assert kind_of(error.value) == "oom"
