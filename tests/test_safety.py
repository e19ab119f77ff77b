"""Files of others are data: nothing in them is run, nothing outside their folder is opened, and no stranger can write
to a run over the network."""

from __future__ import annotations

import ast
import ipaddress
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsbench.launch import links
from fsbench.options import BitRate
from tests import fakes, support
from tests.damage import hostile

ROOT = Path(__file__).parent.parent
SOURCES = [path for folder in ("fsbench", "strategies", "workloads") for path in sorted((ROOT / folder).rglob("*.py"))]

RUNS_WHAT_IT_READS = frozenset({
    "pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "jsonpickle",
})  # fmt: skip
RUNS_TEXT = frozenset({"eval", "exec", "compile", "__import__", "os.system", "os.popen"})
HAS_TO_SAY = {"torch.load": ("weights_only", True), "np.load": ("allow_pickle", False)}
MAY_NOT_SAY = {"shell": True, "allow_pickle": True, "weights_only": False}


def faults(source: str) -> list[str]:
    """What in a module would run what it reads, by line."""
    return [f"{node.lineno}: {fault}" for node in ast.walk(ast.parse(source)) if (fault := fault_of(node))]


def fault_of(node: ast.AST) -> str | None:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        names = [getattr(node, "module", None) or alias.name for alias in node.names]
        return next((name for name in names if name.partition(".")[0] in RUNS_WHAT_IT_READS), None)
    if not isinstance(node, ast.Call):
        return None
    name = ast.unparse(node.func)
    said = {word.arg: word.value.value for word in node.keywords if isinstance(word.value, ast.Constant)}
    if name in RUNS_TEXT or any(said.get(word) is value for word, value in MAY_NOT_SAY.items()):
        return name
    word, value = HAS_TO_SAY.get(name, ("", None))
    return f"{name} without {word}={value}" if word and said.get(word) is not value else None


def test_no_module_unpickles_evaluates_or_runs_a_shell():
    """`all_gather_object` and `multiprocessing` pickle too, between processes of one run: that is no file of others."""
    assert len(SOURCES) > 50
    found = {str(path.relative_to(ROOT)): faults(path.read_text()) for path in SOURCES}
    assert {path: of for path, of in found.items() if of} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import os, marshal",
        "import yaml",
        "eval('1')",
        "exec(text)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "torch.load(path, weights_only=trusted)",
        "np.load(path)",
        "subprocess.run(text, shell=True)",
        "os.system(text)",
    ],
)
def test_the_test_above_would_see_it(source: str):
    assert faults(source)


def test_a_model_that_is_put_into_evaluation_is_no_eval():
    assert faults("model.eval()\nre.compile('x')\ntorch.load(path, weights_only=True)") == []


WATCHED = """
import sys
opened = set()
sys.addaudithook(lambda event, values: opened.add(str(values[0])) if event == "open" else None)
from fsbench.cli.main import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
suspect = sorted(name for name in opened if "/set" in name or ".." in name or "passwd" in name)
print(*suspect, sep="\\n", file=sys.stderr)
"""


@pytest.mark.parametrize("command", ["show", "compare"])
def test_reading_a_set_opens_its_two_files_and_no_path_that_they_name(tmp_path: Path, command: str):
    folders = [tmp_path / f"set-{name}" for name in "ab"[: 1 + (command == "compare")]]
    for folder in folders:
        for text in ("../../etc/passwd", "/etc/passwd"):
            records, manifest = hostile(text)
            folder.mkdir(exist_ok=True)
            lines = [*records, {**records[0], "run_id": text}]
            (folder / "runs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
            (folder / "manifest.json").write_text(json.dumps({**manifest, "runs": [text]}))
    arguments = [sys.executable, "-c", WATCHED, command, *map(str, folders)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    opened = [line for line in done.stderr.splitlines() if not line.startswith("fsbench: ")]
    assert opened == [str(folder / name) for folder in folders for name in ("manifest.json", "runs.jsonl")]


# Sockets of a run.

WAITING = '''
    import os
    import threading
    from pathlib import Path

    from fsbench.axes import Sharding


    class Waiting(Sharding):
        """Says in the third step that it has come so far, and waits there until it is killed."""

        moves = False
        lookahead = 1

        def assign(self, batch):
            if batch.step == 3:
                Path(os.environ["WAITING"], str(self.context.rank)).touch()
                threading.Event().wait()
            return batch.source.astype("int64")
'''
refused = links.why_not(2, BitRate(400_000_000))


@pytest.fixture
def waiting_run(tmp_path: Path):
    """`waiting_run(cluster)`: the processes of a run in its third step, when every lane has its sockets."""
    pytest.importorskip("torch")
    fakes.install(
        tmp_path / "site",
        "waiting",
        {"sharding": {"waiting": "waiting_sharding:Waiting"}},
        {"waiting_sharding.py": WAITING},
    )
    (tmp_path / "here").mkdir()
    path = os.pathsep.join(filter(None, (str(tmp_path / "site"), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path, "WAITING": str(tmp_path / "here")}
    started = []

    def start(cluster: str) -> list[int]:
        arguments = ["--workload", support.TINY_LONG, "--sharding", "waiting", "--sync", "shadow-ma", "--on", cluster]
        command = [sys.executable, "-m", "fsbench", "run", *arguments, "--steps", "9", "--out", str(tmp_path / "set")]
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        deadline = time.monotonic() + 60
        while len(os.listdir(tmp_path / "here")) < 2:
            assert time.monotonic() < deadline, "no rank came to its third step"
            assert started[0].poll() is None, "the run ended early"
            time.sleep(0.05)  # how often to look; nothing depends on its length
        return list(processes_with(f"WAITING={tmp_path / 'here'}"))

    yield start
    for process in started:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=30)


def processes_with(variable: str) -> Iterator[int]:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if variable.encode() in (entry / "environ").read_bytes().split(b"\0"):
                yield int(entry.name)
        except OSError:
            continue


def listening(pid: int) -> set[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Addresses of the sockets of a process that take connections or datagrams, in its own network namespace."""
    links_ = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    inodes = {link[len("socket:[") : -1] for link in links_ if link.startswith("socket:[")}
    found = set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes and (fields[3] == "0A" or table.startswith("udp")):
                found.add(address(fields[1].partition(":")[0]))
    return found


def address(digits: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The kernel prints words of the machine's byte order."""
    words = [bytes.fromhex(digits[place : place + 8])[::-1] for place in range(0, len(digits), 8)]
    return ipaddress.ip_address(b"".join(words))


def test_addresses_are_read_as_the_kernel_prints_them():
    assert address("0100007F") == ipaddress.ip_address("127.0.0.1")
    assert address("00000000000000000000000001000000") == ipaddress.ip_address("::1")


@pytest.mark.distributed
@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("cluster", "allowed"),
    [
        ("local:ranks=2", {"127.0.0.1"}),
        pytest.param(
            "local:ranks=2,link=400mbit",
            {"10.0.0.1", "10.0.0.2"},
            marks=pytest.mark.skipif(refused is not None, reason=str(refused)),
        ),
    ],
)
def test_a_local_run_listens_on_loopback_or_its_own_link_alone(waiting_run, cluster: str, allowed: set[str]):
    processes = waiting_run(cluster)
    assert len(processes) >= 4  # fsbench, torch's launcher, two ranks
    found = {str(one) for pid in processes for one in listening(pid)}
    assert found == allowed
