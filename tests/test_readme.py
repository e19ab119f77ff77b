"""The README's strategy works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from fsbench import plugins
from fsbench.axes import BatchMeta
from tests import fakes

README = (Path(__file__).parent.parent / "README.md").read_text()


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """The distribution of the README, as pip would lay it out."""
    source = re.search(r'```python\n"""my_sharding.py"""\n(.*?)```', README, re.DOTALL)[1]
    entry = re.search(r'\[project\.entry-points\."fsbench\.(\w+)"\]\n(\S+) = "(\S+)"', README)
    fakes.install(tmp_path, "my-sharding", {entry[1]: {entry[2]: entry[3]}}, {"my_sharding.py": source})
    monkeypatch.syspath_prepend(str(tmp_path))
    return entry[2]


def test_the_strategy_of_the_readme_is_found_and_assigns(installed):
    found = plugins.find_plugin("sharding", installed)
    assert found.distribution == "my-sharding"
    assert plugins.summary(found) == "Deals samples to ranks in turn."
    strategy = plugins.create("sharding", plugins.Spec(installed))
    ones = np.ones(5, np.int64)
    batch = BatchMeta(ones.astype(float), ones, ones, ones.astype(np.int32) * 0, 2, np.ones(2), None, 0)
    assert strategy.assign(batch).tolist() == [0, 1, 0, 1, 0]


def test_every_make_target_that_the_readme_names_exists():
    makefile = (Path(__file__).parent.parent / "Makefile").read_text()
    for target in set(re.findall(r"`?make (?:PYTHON=\S+ )?([a-z-]+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
