"""Checkpoints that `tune_sync.torch` saves where they are staged are handed over, unchanged."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from ray import tune

import tune_sync.torch as fast
from tune_sync import FastPath, RunConfig, SyncConfig, staged_checkpoint
from tune_sync.fastpath.folder import SHARED_MEMORY, folder_of

STEPS = 5
NUMBERS = 2_000_000


def values(step: int) -> dict[str, Any]:
    return {"step": step, "weights": torch.arange(NUMBERS, dtype=torch.float32) + step}


def staged(inode: int) -> Path:
    """The checkpoint that is this file: of all that is in memory, where directories come and go."""
    for at, _, names in os.walk(folder_of(SHARED_MEMORY)):
        with suppress(FileNotFoundError):
            if "model.pt" in names and Path(at, "model.pt").stat().st_ino == inode:
                return Path(at, "model.pt")
    raise AssertionError("it was copied")


def saves(config: dict[str, Any]) -> None:
    held = {}
    for step in range(STEPS):
        with staged_checkpoint(size_bytes=4 * NUMBERS) as made:
            file = made.path / "model.pt"
            fast.save(values(step), file)
            inode = file.stat().st_ino
            tune.report({"step": step}, checkpoint=made.checkpoint)
        held[step] = torch.load(staged(inode), mmap=True)
    for step, found in held.items():
        assert torch.equal(found["weights"], values(step)["weights"]), step


@pytest.mark.usefixtures("local_ray")
def test_what_is_saved_is_handed_over_and_stays_as_it_was(tmp_path: Path) -> None:
    sync = SyncConfig(
        upload_dir=tmp_path / "shared", wait_for="staged", staging_dir=tmp_path / "staging",
        fast_path=FastPath(max_checkpoints_in_memory=STEPS),
    )  # fmt: skip
    (result,) = tune.Tuner(saves, run_config=RunConfig(name="exp", sync_config=sync)).fit()
    assert result.error is None
    assert len(result.best_checkpoints) == STEPS
    for step, (checkpoint, _) in enumerate(result.best_checkpoints):
        with checkpoint.as_directory() as directory:
            found = torch.load(Path(directory, "model.pt"))
        assert found["step"] == step
        assert torch.equal(found["weights"], values(step)["weights"])
