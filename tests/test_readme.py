"""The README's strategy is the one of `examples/plugin`, and a new user's commands work as they stand there."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SECTION = re.search(r"## Write a strategy\n(.*?)\n## ", README, re.DOTALL)[1]
EXAMPLE = ROOT / "examples" / "plugin"


def block(language: str, number: int = 0) -> str:
    return re.findall(rf"```{language}\n(.*?)```", SECTION, re.DOTALL)[number]


def test_the_strategy_and_its_test_are_those_of_the_example():
    assert block("python") in (EXAMPLE / "fsbench_round_robin.py").read_text()
    assert block("python", 1) in (EXAMPLE / "test_round_robin.py").read_text()


def test_every_make_target_that_the_readme_names_exists():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"`?make (?:PYTHON=\S+ )?([a-z-]+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.fixture(scope="module")
def user(tmp_path_factory):
    """`user(command)`: in a copy of the repository's examples and an environment of their own, which has what this one
    has and is offline."""
    home = tmp_path_factory.mktemp("home")
    environment, work = home / "environment", home / "work"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    (site,) = environment.glob("lib/*/site-packages")
    inherited = [sysconfig.get_path("purelib"), str(ROOT)]
    (site / "inherited.pth").write_text("".join(f"import site; site.addsitedir({path!r})\n" for path in inherited))
    for name in ("fsbench", "pip", "pytest"):
        command = environment / "bin" / name
        command.write_text(f'#!/bin/sh\nexec "{environment}/bin/python" -m {name} "$@"\n')
        command.chmod(0o755)
    shutil.copytree(ROOT / "examples", work / "examples")
    variables = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PIP_NO_INDEX": "1",
        "PIP_NO_DEPS": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip's way to say that there is none
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }

    def run(command: str) -> str:
        done = subprocess.run(["bash", "-ec", command], cwd=work, env=variables, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


COPY, INSTALL, CHECK, RUN = (line.removeprefix("$ ") for line in block("console").splitlines())


@pytest.fixture(scope="module")
def installed(user):
    if importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch: pip install 'fsbench[cpu]'")
    user(f"{COPY} && {INSTALL}")
    return user


slow = [pytest.mark.slow, pytest.mark.distributed, pytest.mark.timeout(240)]


class TestANewUser:
    pytestmark = slow

    def test_sees_the_strategy_with_its_origin(self, installed):
        (line,) = (line for line in installed("fsbench list sharding").splitlines() if "round-robin" in line)
        assert line.split("  ")[-1].strip() == "fsbench-round-robin 0.1.0"
        assert "Deals samples to ranks in turn." in line

    def test_is_told_that_it_keeps_its_contract(self, installed):
        assert installed(f"cd my-strategy && {CHECK}").splitlines()[-1].endswith(" passed, 0 failed, 0 skipped")

    def test_runs_it_in_a_cell_by_name(self, installed):
        tiny = RUN.replace("long-cpu", "long-cpu:batch=4,items=50,categories=5,max_len=50,eval_users=40,dim=8,layers=1")
        out = installed(f"cd my-strategy && {tiny} --steps 8 --out results")
        (row,) = (line for line in out.splitlines() if "round-robin" in line and "CPU     ok" in line)
        assert row.split()[1] == "round-robin"

    def test_runs_the_checks_in_pytest(self, installed):
        out = installed("cd my-strategy && pytest -q -p no:cacheprovider -k 'imports or partition'")
        assert re.search(r"^2 passed, \d+ deselected in", out, re.MULTILINE)
