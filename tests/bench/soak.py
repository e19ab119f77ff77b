"""The built-in matrix with every third run killed at random: `python -m tests.bench.soak [--seed 1]`.

Real ranks; a tiny workload. The victim is a rank of the run, the moment a random one of its phases. Prints what was
recorded of each kill and how long after it; then resumes, without kills. Exit code 1 unless there are 16 records, and
after `--resume` 16 are `ok`. About three minutes.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from fsbench.launch.heartbeat import read_beats
from tests import sessions

MOMENTS = ("start", "data", "rendezvous", "tables", "train", "evaluate", "noise floor")
MATRIX = ("--matrix", "--steps", "12", "--quiet", "--set", "stall_limit_s=30")
POLL_S = 0.002


@dataclass
class Kill:
    """`phase`: the victim's when it was killed; `record`: what was recorded; `seconds`: from the one to the other."""

    rank: int
    phase: str
    at: float
    record: dict | None = None
    seconds: float = 0.0


def run_folders(environment: dict) -> Iterator[Path]:
    """The folder of each run, as it starts."""
    seen: set[Path] = set()
    while True:
        found = set(Path(environment["TMPDIR"]).glob("fsbench-*")) - seen
        seen |= found
        yield from sorted(found)
        yield from ([] if found else [Path()])


def kill_some(session: subprocess.Popen, out: Path, environment: dict, chance: random.Random) -> list[Kill]:
    """Kills a rank of one of every three runs until the session ends."""
    kills: list[Kill] = []
    number, victim = 0, chance.randrange(3)
    for folder in run_folders(environment):
        if session.poll() is not None:
            return kills
        if folder == Path():
            time.sleep(POLL_S)
            continue
        if number % 3 == victim and (kill := kill_one(session, folder, chance)):
            kills.append(kill)
            wait_for_record(session, out, number, kill)
        number += 1
        if number % 3 == 0:
            victim = chance.randrange(3)
    return kills


def kill_one(session: subprocess.Popen, folder: Path, chance: random.Random) -> Kill | None:
    """None if the run ended before the moment came."""
    rank, moment = chance.randrange(2), chance.choice(MOMENTS)
    while session.poll() is None and folder.exists():
        beat = read_beats(folder, 2)[rank]
        if beat and beat.phase in MOMENTS and MOMENTS.index(beat.phase) >= MOMENTS.index(moment):
            with suppress(ProcessLookupError):
                os.kill(beat.pid, signal.SIGKILL)
                return Kill(rank, str(beat), time.monotonic())
        time.sleep(POLL_S)
    return None


def wait_for_record(session: subprocess.Popen, out: Path, number: int, kill: Kill) -> None:
    while session.poll() is None and len(sessions.all_records(out)) <= number:
        time.sleep(POLL_S)
    kill.seconds = time.monotonic() - kill.at
    kill.record = sessions.all_records(out)[number]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        environment = sessions.make_environment(Path(name))
        out = Path(name, "set")
        session = subprocess.Popen(sessions.command(out, *MATRIX), env=environment, stdout=subprocess.DEVNULL)
        kills = kill_some(session, out, environment, random.Random(asked.seed))
        first = sessions.all_records(out)
        resumed = sessions.run(out, environment, *MATRIX, "--resume")
        last = {record["run_id"]: record["status"] for record in sessions.all_records(out)}
        left = sessions.left(environment)
    rows = [(kill.rank, kill.phase, f"{kill.seconds:.1f}", (kill.record or {}).get("reason")) for kill in kills]
    print(tabulate(rows, headers=["victim", "killed in", "s to the record", "recorded as"], maxcolwidths=100))
    ok = list(last.values()).count("ok")
    print(f"{len(first)} records, {len(kills)} killed; after --resume {ok} ok, exit code {resumed.returncode}")
    print(f"left behind: {left or 'nothing'}")
    return int(not (len(first) == ok == 16 and resumed.returncode == 0 and session.returncode == 1 and not left))


if __name__ == "__main__":
    sys.exit(main())
