"""Trainables of the tests: every checkpoint says whose it is, and its digest is in the metrics.

Settings in a trial's ``config["settings"]``, all optional:

- ``steps``: how many steps (default 3); ``start_pause_s``, ``pause_s``: before the first, after
  each step.
- ``blob_bytes``: size of ``blob.bin`` (default 4096); ``file_count``, ``file_bytes``: more files.
- ``checkpoint_every``: steps between checkpoints (default 1); the last step always has one.
- ``ours``: report ``tune_sync.Checkpoint`` in place of ``ray.tune.Checkpoint``.
- ``fail_at``: raise before this step, unless it is the first after a resume.
- ``hold_at``: go on with this step only after a resume: the host has to die.
- ``told_at``: go on with this step only when ``~/go_on`` is there on its host.
- ``artifact_bytes``: write ``artifact_<step>.bin`` of this size into the working directory.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import tempfile
import time
from pathlib import Path
from typing import Any

from ray import tune

import tune_sync
from tests.bed.tree import tree_digest

RAYS_OWN = ".tune_metadata"  # Ray adds this file to what a class trainable has saved
GO_ON = "go_on"
WRITTEN = "written.jsonl"  # in HOME: what class trainables have saved on this host


def score_of(trial_id: str, step: int) -> float:
    """Later trials are better ones; all get better with time."""
    return int(trial_id.rsplit("_", 1)[-1]) + step / 1000


def whole_digest(directory: str | Path) -> str:
    """One digest of a checkpoint: names, kinds, sizes and bytes of all that the trial wrote."""
    tree = tree_digest(directory)
    tree.pop(RAYS_OWN, None)
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def write_checkpoint(directory: Path, settings: dict[str, Any], state: dict[str, Any]) -> str:
    """Fill a directory with a checkpoint and return its digest."""
    state = {**state, "node": socket.gethostname()}
    blob = os.urandom(settings.get("blob_bytes", 4096))
    (directory / "state.json").write_text(json.dumps(state))
    (directory / "blob.bin").write_bytes(blob)
    (directory / "blob.sha256").write_text(hashlib.sha256(blob).hexdigest())
    (directory / "empty").mkdir()
    for number in range(settings.get("file_count", 0)):
        (directory / f"file_{number}").write_bytes(os.urandom(settings.get("file_bytes", 64)))
    return whole_digest(directory)


def read_checkpoint(directory: str | Path) -> dict[str, Any]:
    """The state in a checkpoint.

    Raises:
        ValueError: Its blob is not the one that was written.
    """
    root = Path(directory)
    digest = hashlib.sha256((root / "blob.bin").read_bytes()).hexdigest()
    if digest != (root / "blob.sha256").read_text():
        raise ValueError(f"{root}: the blob is damaged")
    state: dict[str, Any] = json.loads((root / "state.json").read_text())
    return state


def train_n(config: dict[str, Any]) -> None:
    """Function trainable: resumes after the step of its checkpoint."""
    settings = config.get("settings", {})
    trial_id, first, parent = tune.get_context().get_trial_id(), 0, None
    found = tune.get_checkpoint()
    if found is not None:
        with found.as_directory() as directory:
            state = read_checkpoint(directory)
        first, parent = state["step"] + 1, state["trial_id"]
    time.sleep(settings.get("start_pause_s", 0))
    took_s = 0.0  # how long the last report took
    for step in range(first, settings.get("steps", 3)):
        _fail_if_due(settings, first, step)
        _hold_if_due(settings, first, step)
        _write_artifact(settings, step)
        metrics: dict[str, Any] = {"step": step, "node": socket.gethostname(), "resumed_at": first}
        metrics |= {"score": score_of(trial_id, step), "took_s": took_s}
        if not _is_due(settings, step):
            tune.report(metrics)
            continue
        with tempfile.TemporaryDirectory() as directory:
            state = {"trial_id": trial_id, "step": step, "parent": parent}
            metrics["digest"] = write_checkpoint(Path(directory), settings, state)
            kind = tune_sync.Checkpoint if settings.get("ours") else tune.Checkpoint
            start_s = time.monotonic()
            tune.report(metrics, checkpoint=kind.from_directory(directory))
            took_s = time.monotonic() - start_s
            print(f"step {step} stored in {took_s:.2f} s", flush=True)
        time.sleep(settings.get("pause_s", 0))


class TrainN(tune.Trainable):  # type: ignore[misc]
    """Class twin of ``train_n``. Uses ``os.path`` alone to read its checkpoint."""

    def setup(self, config: dict[str, Any]) -> None:
        self.settings = config.get("settings", {})
        self.step_done = -1
        self.parent: str | None = None
        self.resumed_at = 0
        self.loaded_from = ""
        time.sleep(self.settings.get("start_pause_s", 0))

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.setup(new_config)
        return True

    def step(self) -> dict[str, Any]:
        time.sleep(self.settings.get("pause_s", 0))
        self.step_done += 1
        _fail_if_due(self.settings, self.resumed_at, self.step_done)
        _write_artifact(self.settings, self.step_done)
        return {
            "step": self.step_done,
            "node": socket.gethostname(),
            "resumed_at": self.resumed_at,
            "parent": self.parent or "",
            "score": score_of(self.trial_id, self.step_done),
            "loaded_from": self.loaded_from,
            "done": self.step_done + 1 >= self.settings.get("steps", 3),
        }

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        state = {"trial_id": self.trial_id, "step": self.step_done, "parent": self.parent}
        digest = write_checkpoint(Path(checkpoint_dir), self.settings, state)
        with (Path.home() / WRITTEN).open("a") as notes:
            notes.write(json.dumps({**state, "digest": digest}) + "\n")

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        if not os.path.isdir(checkpoint_dir):
            raise NotADirectoryError(checkpoint_dir)
        state = read_checkpoint(os.path.realpath(checkpoint_dir))
        self.step_done, self.parent = state["step"], state["trial_id"]
        self.resumed_at = self.step_done + 1
        self.loaded_from = f"{socket.gethostname()}:{whole_digest(checkpoint_dir)}"


def _fail_if_due(settings: dict[str, Any], first: int, step: int) -> None:
    if step == settings.get("fail_at") and step != first:
        raise RuntimeError(f"fails at step {step}, as told to")


def _hold_if_due(settings: dict[str, Any], first: int, step: int) -> None:
    while step == settings.get("hold_at") and not first:
        time.sleep(1.0)
    while step == settings.get("told_at") and not (Path.home() / GO_ON).exists():
        time.sleep(0.1)


def _is_due(settings: dict[str, Any], step: int) -> bool:
    done = step + 1
    return done % settings.get("checkpoint_every", 1) == 0 or done == settings.get("steps", 3)


def _write_artifact(settings: dict[str, Any], step: int) -> None:
    """Into the trial's working directory."""
    size_bytes = settings.get("artifact_bytes", 0)
    if size_bytes:
        Path(f"artifact_{step}.bin").write_bytes(os.urandom(size_bytes))
