"""`fsbench contention`: its statistics, its file and its refusal, without a GPU; `make gpu-check` times kernels."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path

import pytest

from fsbench.cli import contention as command
from fsbench.costs.contention import Pair, Row, read, row, write
from fsbench.costs.contention_bench import Copy, measure
from fsbench.errors import DataError
from fsbench.results.ratios import MISSING
from fsbench.results.student import quantile
from tests.fakes import run_command

ENGINE, BLOCKS = Copy("d2d", 0), Copy("blocks", 8)
NO_TRITON = Copy("blocks", 4, "needs triton: No module named 'triton'")


def pair(slowdown, alone_s=2.0, *, outlasted=True):
    return Pair(alone_s, alone_s * slowdown, 3e11, outlasted)


class FakeGpu:
    """Kernels take what `slowdowns` say, by copy; the k-th timing of all takes `drift`^k times as long."""

    kernels = ("attention", "gemm")

    def __init__(self, slowdowns, drift=1.0, **options):
        self.slowdowns = slowdowns
        self.copies = list(slowdowns)
        self.drift = drift
        self.options = options
        self.timed = []

    def time(self, kernel, copy):
        alone_s = self.drift ** len(self.timed)
        self.timed.append((kernel, copy))
        noise = 1 + 1e-4 * math.sin(len(self.timed))
        return pair(self.slowdowns[copy] * noise, alone_s, **self.options)


def measured(gpu, repeats=6):
    return measure(gpu, repeats, seed=1, on_pair=lambda done, of: None)


class TestStatistics:
    def test_a_slowdown_is_the_geometric_mean_of_pairs_with_students_interval(self):
        found = row("gemm", "d2d", 0, [pair(1.1), pair(1.2), pair(1.3)])
        logs = [math.log(slowdown) for slowdown in (1.1, 1.2, 1.3)]
        mean = sum(logs) / 3
        error = math.sqrt(sum((log - mean) ** 2 for log in logs) / 2 / 3)
        assert found.slowdown == pytest.approx(math.exp(mean))
        assert found.low == pytest.approx(math.exp(mean - quantile(0.05, 2) * error))
        assert found.high == pytest.approx(math.exp(mean + quantile(0.05, 2) * error))
        assert (found.runs, found.copied_gb_per_s, found.reason) == (3, 300, None)

    def test_drift_of_the_clock_is_in_both_halves_of_a_pair_and_cancels(self):
        for one in measured(FakeGpu({ENGINE: 1.0, BLOCKS: 1.25}, drift=1.05)):
            assert one.slowdown == pytest.approx(1.0 if one.copy == "d2d" else 1.25, rel=2e-3)
            assert one.low < one.slowdown < one.high

    def test_copies_that_ended_too_early_give_no_figure(self):
        found = row("gemm", "d2d", 0, [pair(1.1), pair(1.2, outlasted=False)])
        assert (found.slowdown, found.low, found.copied_gb_per_s) == (None, None, None)
        assert found.reason == "copies ended before the kernels in 1 runs"

    def test_one_pair_has_a_ratio_and_no_interval(self):
        found = row("gemm", "d2d", 0, [pair(1.5)])
        assert found.slowdown == pytest.approx(1.5)
        assert (found.low, found.high) == (None, None)
        assert found.reason is not None


class TestOrder:
    def test_every_kernel_meets_every_copy_as_often_in_another_order_each_time(self):
        gpu = FakeGpu({ENGINE: 1.0, BLOCKS: 1.2})
        measured(gpu, repeats=5)
        rounds = [gpu.timed[start : start + 4] for start in range(0, 20, 4)]
        everything = {(kernel, copy) for kernel in gpu.kernels for copy in gpu.copies}
        assert all(set(one) == everything for one in rounds)
        assert len({tuple(one) for one in rounds}) > 1

    def test_what_cannot_be_had_here_is_a_row_with_the_reason(self):
        gpu = FakeGpu({ENGINE: 1.0, NO_TRITON: 9.0})
        rows = [one for one in measured(gpu) if one.copy == "blocks"]
        assert [(one.runs, one.slowdown, one.reason) for one in rows] == [(0, None, NO_TRITON.reason)] * 2
        assert NO_TRITON not in {copy for _, copy in gpu.timed}


class TestFile:
    def test_rows_come_back_as_they_were(self, tmp_path):
        rows = [*measured(FakeGpu({ENGINE: 1.0, BLOCKS: 1.2, NO_TRITON: 1.0}))]
        path = tmp_path / "deep" / "contention.toml"
        write(path, rows, {"gpu": 'A "quoted" name', "bytes": 4})
        content = tomllib.loads(path.read_text())
        assert read(content, path) == rows
        assert content["contention"]["source"] == 'measured by fsbench contention: gpu A "quoted" name, bytes 4'

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ({}, "no table contention of format 1"),
            ({"contention": {"format": 2}}, "no table contention of format 1"),
            ({"contention": {"format": 1, "row": [{"speed": 1}]}}, "contention row 0 has the unknown key 'speed'"),
            ({"contention": {"format": 1, "row": [{"kernel": "gemm"}]}}, "contention row 0: "),
        ],
    )
    def test_one_that_this_version_does_not_read_is_refused(self, content, message):
        with pytest.raises(DataError) as error:
            read(content, Path("p.toml"))
        assert str(error.value).startswith(f"p.toml: {message}")


class TestCommand:
    def test_without_a_gpu_it_refuses_in_one_line_and_writes_nothing(self, capsys, tmp_path, monkeypatch):
        pytest.importorskip("torch")
        monkeypatch.setattr(command, "driver_version", lambda: 0)
        done = run_command(capsys, "contention", "--out", str(tmp_path / "c.toml"))
        assert done == (1, "", "fsbench: error: contention is measured on a GPU; found no CUDA driver\n")
        assert list(tmp_path.iterdir()) == []

    def test_with_a_driver_and_no_device_too(self, capsys, tmp_path, monkeypatch):
        torch = pytest.importorskip("torch")
        monkeypatch.setattr(command, "driver_version", lambda: 13000)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        done = run_command(capsys, "contention", "--out", str(tmp_path / "c.toml"))
        assert done.exit_code == 1
        assert done.err == f"fsbench: error: contention is measured on a GPU; torch {torch.__version__} sees none\n"

    def test_it_prints_the_rows_and_leaves_them_in_the_file(self, capsys, tmp_path, monkeypatch):
        pytest.importorskip("torch")
        gpu = FakeGpu({ENGINE: 1.0, BLOCKS: 1.25, NO_TRITON: 1.0})
        monkeypatch.setattr(command, "_open", lambda size, blocks: (gpu, {"gpu": "H200"}))
        path = tmp_path / "c.toml"
        done = run_command(capsys, "contention", "--repeats", "3", "--size", "1MiB", "--quiet", "--out", str(path))
        assert (done.exit_code, done.err) == (0, "")
        lines = done.out.splitlines()
        assert lines[2].split()[:4] == ["attention", "copy", "engine,", "d2d"]
        assert lines[3].split()[:4] == ["attention", "8", "blocks", "1.250"]
        assert lines[4].endswith(NO_TRITON.reason)
        assert lines[-1] == f"contention constants: {path}"
        assert "bytes 1048576, repeats 3" in path.read_text()
        assert len(read(tomllib.loads(path.read_text()), path)) == 6

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--size", "0"], "expected a multiple of 4 bytes above 0"),
            (["--size", "6"], "expected a multiple of 4 bytes above 0"),
            (["--size", "big"], "expected a size such as 4096, 64KiB or 1MiB"),
            (["--repeats", "1"], "Invalid value for '--repeats'"),
            (["--blocks", "0"], "Invalid value for '--blocks'"),
        ],
    )
    def test_bad_input_is_one_line_and_ends_with_code_2(self, capsys, arguments, message):
        done = run_command(capsys, "contention", *arguments)
        assert done.exit_code == 2
        assert message in done.err
        assert done.err.count("\n") == 1


def test_a_row_without_figures_is_shown_as_missing_and_not_as_zero():
    (line,) = command.describe([Row("gemm", "blocks", 4, 0, reason="needs triton")]).splitlines()[2:]
    assert line.split() == ["gemm", "4", "blocks", MISSING, MISSING, MISSING, "0", "needs", "triton"]
