"""A driver whose results are mirrored, until it is killed: `mirror_for_ever.py HOME REMOTE SEED`.

It sends with functions of its own, which die with it, byte by byte: what is cut off is torn.
The state names checkpoints; lines on standard output say what was done.
"""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from pathlib import Path

from tests.unit.staged import placed
from tune_sync import CallbackSyncer
from tune_sync.mirror.mirror import Mirror
from tune_sync.run import Run

KEEP_COUNT = 2
STATE = "experiment_state-1.json"
TIMEOUT_S = 30.0
PIECE_BYTES = 2_000


def copy_slowly(source: str, target: str) -> None:
    for path in sorted(Path(source).rglob("*"), reverse=True):
        if path.is_file():
            into = Path(target, path.relative_to(source))
            into.parent.mkdir(parents=True, exist_ok=True)
            data = path.read_bytes()
            with open(into, "wb", buffering=0) as file:
                for start in range(0, len(data), PIECE_BYTES):
                    file.write(data[start : start + PIECE_BYTES])
    if not Path(source).is_dir():
        raise FileNotFoundError(source)


def syncer() -> CallbackSyncer:
    return CallbackSyncer(copy_slowly, copy_slowly, shutil.rmtree)


def main(home: Path, remote: Path) -> None:
    run = Run.open(home, "resume", TIMEOUT_S, 1)
    run.begun = True
    mirror = Mirror(home, str(remote), syncer(), 0.05, TIMEOUT_S, run.lease.check)
    mirror.begin(run.home.published_keys())
    run.watch(mirror)
    numbers = [int(p.name[-6:]) for p in home.glob("trial/checkpoint_*")]
    for number in itertools.count(max(numbers, default=-1) + 1):
        key = f"trial/checkpoint_{number:06d}"
        content = {name: f"{number} {name} ".encode() * 1_500 for name in ("a", "sub/b")}
        run.note_latest(key)
        run.publisher.record_later(placed(run.home.committer, content, key))
        run.publisher.drain(TIMEOUT_S)
        kept = [f"trial/checkpoint_{n:06d}" for n in range(number + 1)][-KEEP_COUNT:]
        fresh = home / ".fresh"
        state = {"trial_data": [], "named": kept, "padding": "padding" * 1_000}
        fresh.write_text(json.dumps(state))
        fresh.replace(home / STATE)
        run.versions.made()
        run.versions.copying()()  # it has arrived
        run.state_written()
        if number >= KEEP_COUNT:
            run.retire_later(f"trial/checkpoint_{number - KEEP_COUNT:06d}")
        print(number, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
