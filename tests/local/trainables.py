"""Trainables that fail once, or wait to be killed, so that there is something to restore."""

from __future__ import annotations

import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
from ray import tune

from tests.hosts.drivers.trainables import TrainN, read_checkpoint, train_n, write_checkpoint

FAILS_AT = 3
STEPS = 6


def stumbles(config: dict[str, Any]) -> None:
    """`train_n`, with an end after three steps the first time."""
    if tune.get_checkpoint() is None:
        train_n({"settings": {"steps": FAILS_AT}})
        raise RuntimeError("stumbled")
    train_n({"settings": {"steps": STEPS}})


class Stumbles(TrainN):
    """`TrainN`, with an error in its fourth step the first time; `config["mark"]` remembers."""

    def setup(self, config: dict[str, Any]) -> None:
        super().setup({**config, "settings": {"steps": STEPS}})

    def step(self) -> dict[str, Any]:
        mark = Path(self.config["mark"])
        if self.step_done + 1 == FAILS_AT and not mark.exists():
            mark.touch()
            raise RuntimeError("stumbled")
        return super().step()


def wait_if_told(config: dict[str, Any], first: int, step: int) -> None:
    """For ever, once a step is stored, to be killed; not after a resume."""
    while step == config["hold_after"] and first == 0:
        time.sleep(0.05)


def holds(config: dict[str, Any]) -> None:
    """`train_n` that waits after a step."""
    found = tune.get_checkpoint()
    first = 0
    if found is not None:
        with found.as_directory() as directory:
            first = read_checkpoint(directory)["step"] + 1
    for step in range(first, STEPS):
        with tempfile.TemporaryDirectory() as made:
            write_checkpoint(Path(made), {}, {"step": step})
            metrics = {"step": step, "resumed_at": first, "odd": np.float32(step)}
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(made))
        wait_if_told(config, first, step)


class Holds(TrainN):
    """`TrainN` that waits before the step that follows."""

    def setup(self, config: dict[str, Any]) -> None:
        super().setup({**config, "settings": {"steps": STEPS}})

    def step(self) -> dict[str, Any]:
        wait_if_told(self.config, self.resumed_at, self.step_done)
        return super().step()


class SlowToSave(tune.Trainable):  # type: ignore[misc]
    """Saves take longer than steps, and each one is noted in `config["notes"]`."""

    def setup(self, config: dict[str, Any]) -> None:
        self.step_done, self.parent = -1, ""

    def step(self) -> dict[str, Any]:
        number = int(self.trial_id.rsplit("_", 1)[-1])
        time.sleep(0.2 + 0.1 * number)
        self.step_done += 1
        return {
            "step": self.step_done,
            "score": number + self.step_done / 1000,
            "parent": self.parent,
            "done": self.step_done + 1 >= STEPS,
        }

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        time.sleep(self.config["save_s"])
        name = uuid.uuid4().hex
        Path(checkpoint_dir, "name").write_text(name)
        Path(checkpoint_dir, "step").write_text(str(self.step_done))
        with open(self.config["notes"], "a") as notes:
            notes.write(f"{self.trial_id} {name}\n")

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        self.parent = Path(checkpoint_dir, "name").read_text()
        self.step_done = int(Path(checkpoint_dir, "step").read_text())
