"""Hardware profiles: every constant has a source, and what is wrong in one is told by file and key."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fsbench.errors import DataError, UserError
from fsbench.sim.profile import CONSTANTS, FOLDER, load_profile, names

GOOD = (FOLDER / "h100-ib200.toml").read_text()


def written(folder: Path, old: str = "", new: str = "") -> str:
    """The path of a copy of `h100-ib200` in which something is replaced."""
    assert old in GOOD
    path = folder / "mine.toml"
    path.write_text(GOOD.replace(old, new, 1))
    return str(path)


@pytest.mark.parametrize("name", names())
def test_every_profile_has_all_constants_and_the_source_of_each(name):
    profile = load_profile(name)
    assert set(profile.values) == set(profile.sources) == set(CONSTANTS)
    assert all(profile.sources.values())


def test_the_profiles_that_are_promised_are_there():
    assert names() == ["a100-ib200", "h100-ib200", "h100-ib400", "h200-ib400", "local-cpu"]


def test_a_machine_has_the_profiles_hosts_and_rates():
    machine = load_profile("h100-ib200").machine(16)
    assert (machine.topology.hosts, machine.topology.ranks_a_host) == (2, 8)
    assert machine.links["rail"].bytes_per_s == 25e9
    assert machine.links["rail"].latency_ns == 14000
    assert machine.slowdown == {"sm": 0.1, "host": 0.0}


def test_a_link_between_hosts_puts_each_rank_on_a_host_of_its_own():
    machine = load_profile("local-cpu").machine(3, bytes_per_s=50e6)
    assert machine.topology.hosts == 3
    assert machine.links["rail"].bytes_per_s == machine.links["across"].bytes_per_s == 50e6


def test_hosts_of_different_speeds_follow_each_other_in_turn(tmp_path):
    mixed = load_profile(written(tmp_path, 'device = "gpu"', 'device = "gpu"\nspeeds = [1, 0.5]')).machine(24)
    assert np.array_equal(mixed.speeds, np.repeat([1.0, 0.5, 1.0], 8))


def test_ranks_that_fill_no_host_are_refused():
    with pytest.raises(UserError, match=r"h100-ib200\.toml: ranks_a_host is 8, of which 12 ranks are no multiple"):
        load_profile("h100-ib200").machine(12)


def test_an_unknown_profile_is_told_which_there_are():
    with pytest.raises(UserError, match=r"unknown profile 'h100-ib20'; did you mean h100-ib200.*valid: a100-ib200"):
        load_profile("h100-ib20")


WRONG = [
    ("value = 25e9", "value = 0", "links.rail.bytes_per_s is 0, expected more than 0"),
    ("value = 14000", "value = -1", "links.rail.latency_ns is -1, expected 0 or more"),
    ("value = 0.001,", "value = 0,", "work.row_byte_ns is 0, expected more than 0"),
    ("value = 25e9", 'value = "fast"', "links.rail.bytes_per_s is 'fast', expected a number"),
    ("value = 25e9", "value = inf", "links.rail.bytes_per_s is inf, expected a number"),
    ("value = 8,", "value = 8.5,", "ranks_a_host is 8.5, expected a whole number"),
    ("[links.rail]", "[links.rails]", "unknown key links.rails; did you mean links.rail.latency_ns"),
    ('device = "gpu"', 'device = "tpu"', "device is 'tpu', expected cpu or gpu"),
    ('device = "gpu"', 'device = "gpu"\nspeeds = [0]', r"speeds is \[0\], expected a list of numbers above 0"),
    ("[noise]\njitter", "[noise]\n# jitter", "noise.jitter is missing"),
    ('source = "by construction', 'sauce = "by construction', "contention.host is .*expected { value = NUMBER"),
    ('source = "the usual 8-GPU server"', 'source = " "', "ranks_a_host has no source"),
    ("[compute]", "[compute", "Expected"),
]


@pytest.mark.parametrize(("old", "new", "message"), WRONG)
def test_what_is_wrong_in_a_profile_is_told_in_one_line_with_file_and_key(tmp_path, old, new, message):
    path = written(tmp_path, old, new)
    with pytest.raises(DataError, match=message) as told:
        load_profile(path)
    assert str(told.value).startswith(f"{path}: ")
    assert "\n" not in str(told.value)
