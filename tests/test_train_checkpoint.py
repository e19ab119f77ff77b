"""Checkpoints of others: tensors and plain values are loaded, and nothing that a file asks for is run."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest

from fsbench.errors import DataError

torch = pytest.importorskip("torch")
from fsbench.train import checkpoint  # noqa: E402


class Malicious:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self):
        return os.mkdir, (str(self._path),)


def load(path: Path) -> int:
    return checkpoint.load(SimpleNamespace(context=SimpleNamespace(device=torch.device("cpu"))), path)


@pytest.mark.parametrize("save", [torch.save, lambda state, path: path.write_bytes(pickle.dumps(state, protocol=2))])
def test_a_checkpoint_that_would_run_something_is_refused_in_one_line_and_runs_nothing(tmp_path: Path, save):
    path, made = tmp_path / "state.pt", tmp_path / "made"
    save({"format": checkpoint.FORMAT, "model": Malicious(made)}, path)
    with pytest.raises(DataError) as error:
        load(path)
    assert str(error.value).startswith(f"{path}: no checkpoint that is safe to load: UnpicklingError: ")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300
    assert not made.exists()


def test_what_is_damaged_is_refused_in_one_line_wherever_it_was_cut(tmp_path: Path):
    whole, path = tmp_path / "whole.pt", tmp_path / "state.pt"
    torch.save({"format": checkpoint.FORMAT, "model": {"weight": torch.zeros(50)}}, whole)
    content = whole.read_bytes()
    for end in (0, 1, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:end])
        with pytest.raises(DataError, match="no checkpoint that is safe to load: ") as error:
            load(path)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("state", [[1, 2], {"format": 99}, {}, torch.zeros(2)])
def test_what_is_no_checkpoint_of_this_version_is_refused(tmp_path: Path, state):
    torch.save(state, tmp_path / "state.pt")
    with pytest.raises(DataError, match=r"state\.pt: checkpoint format (None|99), this version reads 1"):
        load(tmp_path / "state.pt")


def test_a_checkpoint_that_lacks_a_part_is_refused_before_anything_is_restored(tmp_path: Path):
    torch.save({"format": checkpoint.FORMAT, "step": 3, "model": {}, "optimizer": {}}, tmp_path / "state.pt")
    with pytest.raises(DataError, match=r"state\.pt: the checkpoint lacks tables, sharding, collectives, sync"):
        load(tmp_path / "state.pt")


def test_a_checkpoint_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(DataError, match=r"state\.pt: no such checkpoint"):
        load(tmp_path / "state.pt")
