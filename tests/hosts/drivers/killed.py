"""A trial whose process kills itself at random moments while a checkpoint is under way.

Takes one JSON argument: {"name": …, "kills": how often, "steps": …, "seed": …}.
The trial runs on w1 and keeps the count of its kills in its HOME. Every second of its lives reports
`tune_sync.Checkpoint`, the others Ray's own.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import ray
import xxhash
from ray import tune

import tune_sync

LARGE_BYTES = 24 << 20
# How much of the time that the report before took may pass until the kill.
PART = 0.8
PAUSE_S = 0.6
LOOK_EVERY_S = 0.03


def write_files(directory: Path, step: int) -> None:
    """A checkpoint that tells by itself whether it is whole."""
    files = {f"small/{number}": os.urandom(100) for number in range(100)}
    files |= {f"large_{number}": os.urandom(LARGE_BYTES) for number in range(2)}
    (directory / "small").mkdir()
    (directory / "empty").mkdir()
    for name, data in files.items():
        (directory / name).write_bytes(data)
    digests = {name: xxhash.xxh3_128_hexdigest(data) for name, data in files.items()}
    (directory / "state.json").write_text(json.dumps({"step": step, "digests": digests}))


def step_of(directory: Path) -> int:
    """The step of a whole checkpoint.

    Raises:
        AssertionError: It is not whole, or holds more than its files.
    """
    state = json.loads((directory / "state.json").read_text())
    found = {
        str(path.relative_to(directory)): xxhash.xxh3_128_hexdigest(path.read_bytes())
        for path in directory.rglob("*")
        if path.is_file() and path.name != "state.json"
    }
    assert found == state["digests"], f"{directory} is not whole"
    assert (directory / "empty").is_dir()
    return int(state["step"])


def train_fn(config: dict[str, Any]) -> None:
    notes = Path.home() / f"{config['name']}.json"
    log = (
        json.loads(notes.read_text())
        if notes.exists()
        else {"kills": [], "starts": [], "through": []}
    )
    start, checkpoint = 0, tune.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as directory:
            start = step_of(Path(directory)) + 1
    log["starts"].append([start, time.time()])
    notes.write_text(json.dumps(log))
    numbers = random.Random(config["seed"] + len(log["kills"]))
    kind = (tune.Checkpoint, tune_sync.Checkpoint)[len(log["kills"]) % 2]
    took_s = 0.0
    for step in range(start, config["steps"]):
        with tempfile.TemporaryDirectory() as made:
            write_files(Path(made), step)
            # Two reports after a start go through: for progress, and to see how long one takes
            # (the first also finds the way home).
            to_be_killed = step > start + 1 and len(log["kills"]) < config["kills"]
            if to_be_killed:
                delay_s = numbers.uniform(0, PART * took_s)
                log["kills"].append([step, delay_s])
                notes.write_text(json.dumps(log))
                threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
            metrics = {"step": step, "host": os.uname().nodename}
            began_s = time.monotonic()
            tune.report(metrics, checkpoint=kind.from_directory(made))
            took_s = time.monotonic() - began_s
        if to_be_killed:
            log["through"].append(step)
            notes.write_text(json.dumps(log))
        time.sleep(0 if len(log["kills"]) == config["kills"] else PAUSE_S)


@ray.remote(num_cpus=0, resources={"w1": 0.01})
def read_notes(name: str) -> Any:
    return json.loads((Path.home() / f"{name}.json").read_text())


class Reader(threading.Thread):
    """Looks at home again and again: what is visible there is whole, at every moment."""

    def __init__(self, root: Path) -> None:
        super().__init__(daemon=True)
        self.root, self.over, self.broken = root, threading.Event(), []
        self.steps: dict[str, int] = {}
        self.seen: list[tuple[float, int]] = []

    def run(self) -> None:
        while not self.over.wait(LOOK_EVERY_S):
            for directory in self.root.glob("train_fn*/checkpoint_*"):
                if directory.name not in self.steps:
                    self.look(directory)

    def look(self, directory: Path) -> None:
        try:
            self.steps[directory.name] = step_of(directory)
        except Exception as error:
            self.broken.append(repr(error))
        else:
            self.seen.append((time.time(), self.steps[directory.name]))


def main() -> None:
    asked = json.loads(sys.argv[1])
    ray.init(log_to_driver=False)
    root = Path.home() / "ray_results" / asked["name"]
    reader = Reader(root)
    reader.start()
    tuner = tune.Tuner(
        tune.with_resources(train_fn, {"cpu": 1, "w1": 1}),
        param_space=asked,
        run_config=tune_sync.RunConfig(
            name=asked["name"],
            sync_config=tune_sync.SyncConfig(),
            failure_config=tune.FailureConfig(max_failures=asked["kills"]),
        ),
    )
    result = tuner.fit()[0]
    reader.over.set()
    reader.join()
    if result.error:
        raise result.error
    checkpoints = sorted(Path(result.path).glob("checkpoint_*"))
    manifests = root / ".tune_sync/manifests" / Path(result.path).name
    found = {
        "home": os.uname().nodename,
        "host": result.metrics["host"],
        "last_step": result.metrics["step"],
        "steps": {path.name: step_of(path) for path in checkpoints},
        "published": sorted(path.stem for path in manifests.glob("*.json")),
        "broken": reader.broken,
        "seen": reader.seen,
        "leftovers": [str(p) for p in (root / ".tune_sync/staging").rglob("*") if p.is_file()],
        **ray.get(read_notes.remote(asked["name"])),
    }
    print("RESULT", json.dumps(found))


if __name__ == "__main__":
    main()
