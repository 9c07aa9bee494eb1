"""The trainable: reports a checkpoint of some megabytes again and again, and notes what it does."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

from ray import tune

from tests.kills.notes import add

STEP_S = 0.3
SMALLEST_BYTES, LARGEST_BYTES = 1 << 20, 4 << 20
BLOBS_COUNT = 2
LIFE, STOP = "life", "stop"


def notes_file(folder: Path, index: int) -> Path:
    """Where the trial with this index writes its notes."""
    return folder / f"trial-{index}.jsonl"


def write_checkpoint(folder: Path, index: int, step: int) -> None:
    """Fill a directory: random bytes, in more than one file."""
    size_bytes = random.randint(SMALLEST_BYTES, LARGEST_BYTES)
    for number in range(BLOBS_COUNT):
        (folder / f"blob_{number}").write_bytes(os.urandom(size_bytes // BLOBS_COUNT))
    (folder / "state.json").write_text(json.dumps({"index": index, "step": step}))


def digest_of(folder: Path) -> str:
    """Of the names and bytes of all files."""
    whole = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        whole.update(f"{path.relative_to(folder)} {digest}\n".encode())
    return whole.hexdigest()


def step_of(folder: Path) -> int:
    """The step of a checkpoint."""
    return int(json.loads((folder / "state.json").read_text())["step"])


class NotesErrors(tune.Callback):  # type: ignore[misc]
    """Notes that a trial has failed too often."""

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        folder = Path(trial.config["notes"])
        life = int((folder / LIFE).read_text())
        add(notes_file(folder, trial.config["index"]), event="broken", life=life)


def first_step(found: tune.Checkpoint | None) -> int:
    """The step after the one of a checkpoint."""
    if found is None:
        return 0
    with found.as_directory() as local:
        return step_of(Path(local)) + 1


def train(config: dict[str, Any]) -> None:
    """Go on until there is a file named `STOP` beside the notes."""
    folder, index = Path(config["notes"]), config["index"]
    notes = notes_file(folder, index)
    life = int((folder / LIFE).read_text())
    first = first_step(tune.get_checkpoint())
    add(notes, event="start", first=first, life=life, host=socket.gethostname())
    for step in itertools.count(first):
        if (folder / STOP).exists():
            return
        with tempfile.TemporaryDirectory() as made:
            write_checkpoint(Path(made), index, step)
            add(notes, event="saving", step=step, digest=digest_of(Path(made)))
            tune.report({"step": step}, checkpoint=tune.Checkpoint.from_directory(made))
        add(notes, event="acked", step=step)
        time.sleep(STEP_S)
