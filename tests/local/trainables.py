"""Trainables that fail once, or wait to be killed, so that there is something to restore."""

from __future__ import annotations

import os
import shutil
import subprocess
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
HALF = 3
HALT_BYTES = 100_000
TRIALS_COUNT = 2
NOTICED_S = 2.0
LARGE_BYTES, LARGE_COUNT = 40_000_000, 40  # under way for long, at a fortieth of it a second


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


def paced(config: dict[str, Any]) -> None:
    """A step every `pause_s`; only two more once it was resumed."""
    found, first, steps = tune.get_checkpoint(), 0, config["steps"]
    if found is not None:
        with found.as_directory() as directory:
            first = read_checkpoint(directory)["step"] + 1
        steps = first + 2
    for step in range(first, steps):
        with tempfile.TemporaryDirectory() as made:
            write_checkpoint(Path(made), {}, {"step": step})
            metrics = {"step": step, "resumed_at": first}
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(made))
        time.sleep(config["pause_s"])


def halts(config: dict[str, Any]) -> None:
    """Stops half way until there is a file "go" in `config["notes"]`, and at the end for "end"."""
    notes = Path(config["notes"])
    for step in range(2 * HALF):
        with tempfile.TemporaryDirectory() as made:
            Path(made, "blob").write_bytes(bytes(HALT_BYTES))
            tune.report({"step": step}, checkpoint=tune.Checkpoint.from_directory(made))
        name = {HALF - 1: "go", 2 * HALF - 1: "end"}.get(step)
        while name and not (notes / name).exists():
            time.sleep(0.05)


class Holds(TrainN):
    """`TrainN` that waits before the step that follows."""

    def setup(self, config: dict[str, Any]) -> None:
        super().setup({**config, "settings": {"steps": STEPS}})

    def step(self) -> dict[str, Any]:
        wait_if_told(self.config, self.resumed_at, self.step_done)
        return super().step()


class SlowToSave(tune.Trainable):  # type: ignore[misc]
    """Saves take longer than steps, and each one is noted in `config["notes"]`.

    So many as `config["together"]` begin together: one that ends early has nothing to take over.
    """

    def setup(self, config: dict[str, Any]) -> None:
        self.step_done, self.parent = -1, ""
        Path(config["begun"], self.trial_id).touch()
        while len(os.listdir(config["begun"])) < config["together"]:
            time.sleep(0.05)

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


def directories(top: str, begins: str) -> list[Path]:
    """Those below `top` whose names begin so: they come and go while this looks."""
    return [Path(d) for d, _, _ in os.walk(top) if os.path.basename(d).startswith(begins)]


def removes_by_hand(config: dict[str, Any]) -> None:
    """Two steps; then someone removes the last one's checkpoint everywhere, and the trial fails."""
    found = tune.get_checkpoint()
    first = 0
    if found is not None:
        with found.as_directory() as directory:
            first = read_checkpoint(directory)["step"] + 1
    for step in range(first, 2):
        with tempfile.TemporaryDirectory() as made:
            write_checkpoint(Path(made), {}, {"step": step})
            metrics = {"step": step, "resumed_at": first, "resumed_s": time.time()}
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(made))
    mark = Path(config["mark"])
    if not mark.exists():
        mark.touch()
        if config["is_stored"]:
            while not list(Path(config["far"]).glob("x/.tune_sync/manifests/*/*1.json")):
                time.sleep(0.05)
        for place in (config["far"], config["staging"]):
            for path in directories(place, "checkpoint_000001"):
                shutil.rmtree(path, ignore_errors=True)
        raise RuntimeError("stumbled")


def loses_its_last_one(config: dict[str, Any]) -> None:
    """One trial ends with a large checkpoint, which another one removes before it is stored."""

    def save(step: int, file_count: int) -> None:
        files = {"file_count": file_count, "file_bytes": LARGE_BYTES // LARGE_COUNT}
        with tempfile.TemporaryDirectory() as made:
            write_checkpoint(Path(made), files, {"step": step})
            tune.report({"step": step}, checkpoint=tune.Checkpoint.from_directory(made))

    save(0, 0)
    while len(list(Path(config["far"]).glob("x/.tune_sync/manifests/*/*0.json"))) < TRIALS_COUNT:
        time.sleep(0.05)
    ended = Path(config["staging"]).with_name("ended")
    if config["is_lost"]:
        save(1, LARGE_COUNT)
        ended.with_name("ending").write_text(str(os.getpid()))
        ended.with_name("ending").rename(ended)
        return
    # Until the other trial and its process are over.
    while not ended.exists() or Path("/proc", ended.read_text()).exists():
        time.sleep(0.05)
    time.sleep(NOTICED_S)
    found = directories(config["staging"], "checkpoint_000001")
    for path in found:
        shutil.rmtree(path, ignore_errors=True)
    # One that is new sees at once what is not there.
    subprocess.run(["pkill", "-KILL", "-P", str(os.getppid()), "-f", "^ray::NodeAgent"], check=True)
    while not Path(config["noticed"]).exists():
        time.sleep(0.05)


def loses_what_it_has_staged(config: dict[str, Any]) -> None:
    """Two steps; after a restore two large ones, removed before they are stored; then one more."""
    found, first = tune.get_checkpoint(), 0
    if found is not None:
        with found.as_directory() as directory:
            first = read_checkpoint(directory)["step"] + 1

    def save(step: int, file_count: int) -> None:
        files = {"file_count": file_count, "file_bytes": LARGE_BYTES // LARGE_COUNT}
        with tempfile.TemporaryDirectory() as made:
            write_checkpoint(Path(made), files, {"step": step})
            metrics = {"step": step, "resumed_at": first}
            tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(made))

    mark = Path(config["mark"])
    if mark.exists():
        save(first, 0)
        return
    for step in range(first, first + 2):
        save(step, LARGE_COUNT if first else 0)
    while not first:  # it is killed
        time.sleep(1.0)
    mark.touch()
    for path in directories(config["staging"], "checkpoint_"):
        shutil.rmtree(path, ignore_errors=True)
    raise RuntimeError("stumbled")
