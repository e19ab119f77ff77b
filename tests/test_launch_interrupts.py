"""Ctrl-C while runs are under way: counted, and looked at where it can be done in order."""

from __future__ import annotations

import os
import signal

import pytest

from fsbench.launch.interrupts import Interrupts


def press(number: int = signal.SIGINT) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts_nothing_but_the_next_check(number):
    cleaned = []

    def work():
        with Interrupts() as interrupts:
            interrupts.check()
            press(number)
            cleaned.append("in one piece")
            assert not interrupts.hurry()
            interrupts.check()
            cleaned.append("never")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert cleaned == ["in one piece"]


def test_from_the_second_on_there_is_hurry():
    interrupts = Interrupts()
    with pytest.raises(KeyboardInterrupt), interrupts:
        press_twice()
    assert interrupts.hurry()


def press_twice() -> None:
    press()
    press()


def test_a_signal_that_nobody_checked_for_is_not_lost():
    with pytest.raises(KeyboardInterrupt), Interrupts():
        press()


def test_handlers_are_as_before_afterwards_and_what_is_ignored_stays_so(monkeypatch):
    before = signal.getsignal(signal.SIGINT)
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts():
            press(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGINT) is not before
        assert signal.getsignal(signal.SIGINT) is before
    finally:
        signal.signal(signal.SIGHUP, ignored)


def test_another_error_is_not_hidden_by_an_interrupt():
    def work():
        with Interrupts():
            press()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
