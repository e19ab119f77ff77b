"""Cost profiles on disk: what comes back, what is refused, and what is only warned about."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsbench.costs.profile import Profile, identity, profile_path
from fsbench.errors import DataError, UserError
from fsbench.options import Spec
from fsbench.plugins import create
from tests import support

MACHINE = {"device": "cpu", "model": "Abacus 3", "threads": 1, "torch": "2.13.0"}


def workload(text: str = support.TINY_LONG):
    return create("workloads", Spec.parse(text))


def profile(text: str = support.TINY_LONG, **changes) -> Profile:
    made = Profile(
        workload={"name": Spec.parse(text).name, **identity(workload(text))},
        machine=MACHINE,
        coefficients_s={"sample": 1e-3, "token": 2e-5, "token^2": 3e-9, "batch": 4e-3},
        error={"median": 0.02, "p95": 0.07},
        measured={"seconds": "of the thread's CPU", "took_s": 12.5},
    )
    return dataclasses.replace(made, **changes)


amounts = st.floats(0, 1e300, allow_nan=False)


@given(st.lists(amounts, min_size=3, max_size=3), amounts, amounts)
def test_what_is_written_is_read_again_to_the_last_bit(tmp_path_factory, coefficients, median, p95):
    path = tmp_path_factory.mktemp("profile") / "deep" / "down.json"
    named = {**dict(zip(("sample", "token", "token^2"), coefficients, strict=True)), "batch": 1.0, "candidate": 0.5}
    written = profile(coefficients_s=named, error={"median": median, "p95": p95})
    written.write(path)
    assert Profile.read(path) == written
    assert [entry.name for entry in path.parent.iterdir()] == ["down.json"]


def test_a_profile_is_found_for_the_workload_with_the_same_options_whatever_their_spelling(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = profile_path(workload("long-cpu:dim=64,batch=4"))
    assert path == profile_path(workload("long-cpu:batch=4"))
    assert path != profile_path(workload("long-cpu:batch=5"))
    assert path.parent == Path("results", "profiles")
    made = profile("long-cpu:batch=4")
    made.write(path)
    assert Profile.of(workload("long-cpu:dim=64,batch=4"), None) == made


def test_a_profile_of_other_options_is_refused_and_the_difference_named(tmp_path):
    path = tmp_path / "mine.json"
    profile().write(path)
    with pytest.raises(UserError) as error:
        Profile.of(workload(support.with_options(support.TINY_LONG, layers=3)), str(path))
    assert str(error.value) == (
        f"{path} is the profile of long-cpu with layers=1, not layers=3; calibrate that workload, or leave profile= out"
    )


def test_a_profile_of_another_workload_is_refused(tmp_path):
    path = tmp_path / "mine.json"
    profile("ml-100k").write(path)
    with pytest.raises(UserError, match=r"is the profile of \S+:MovieLens100K, not of \S+:LongCpu"):
        Profile.of(workload(), str(path))


def test_another_machine_is_told_part_by_part_as_far_as_it_is_known():
    assert profile().elsewhere(MACHINE) == []
    assert profile().elsewhere({"model": "Abacus 4", "threads": 2, "torch": "2.13.0", "memory": 3}) == [
        "model: Abacus 3, here Abacus 4",
        "threads: 1, here 2",
    ]


def damaged(**changes) -> str:
    content = {"format": 1, **dataclasses.asdict(profile()), **changes}
    return json.dumps({key: value for key, value in content.items() if value is not None})


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "no JSON: "),
        ('{"format": 1', "no JSON: "),
        ("[" * 100_000, "no JSON: "),
        ("\0\xff", "no JSON: "),
        ("[]", "expected an object"),
        (damaged(format=2), "format 2; this version of fsbench reads 1"),
        (damaged(machine=None), "'machine' is missing or no object"),
        (damaged(error=[1, 2]), "'error' is missing or no object"),
        (damaged(error={"median": 0.1}), "error: p95 missing"),
        (damaged(workload={"name": "x", "class": 3}), "'workload' needs a name and a class"),
        (damaged(workload={"name": "x", "class": "y"}), "'workload' needs options"),
        (damaged(coefficients_s={"sample": 1.0}), "there is none for 'batch'"),
        (damaged(coefficients_s={"sample": -1.0, "batch": 0}), "sample is -1.0, expected a number of 0 or more"),
        (damaged(coefficients_s={"sample": float("nan"), "batch": 0}), "sample is nan, expected a number"),
        (damaged(coefficients_s={"sample": float("inf"), "batch": 0}), "sample is inf, expected a number"),
        (damaged(coefficients_s={"sample": True, "batch": 0}), "sample is True, expected a number"),
        (damaged(coefficients_s={"sample": "1", "batch": 0}), "sample is '1', expected a number"),
        (damaged(coefficients_s={"sample": 0.0, "batch": 1.0}), "samples cost nothing"),
    ],
)
def test_a_damaged_profile_is_one_line_with_its_path_and_what_is_wrong(tmp_path, text, fault):
    path = tmp_path / "torn.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(DataError) as error:
        Profile.read(path)
    message = str(error.value)
    assert message.startswith(f"{path}: ")
    assert fault in message
    assert "\n" not in message


def test_a_profile_that_is_not_there_says_how_to_make_one(tmp_path):
    with pytest.raises(DataError, match="no such profile; `fsbench calibrate` makes one"):
        Profile.read(tmp_path / "none.json")
    with pytest.raises(DataError, match="Is a directory"):
        Profile.read(tmp_path)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write the profile to .*/file/p\.json: "):
        profile().write(tmp_path / "file" / "p.json")
