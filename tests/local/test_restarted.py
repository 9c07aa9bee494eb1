"""A trial that a restore restarts, and that has the name of the one before, begins anew."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from ray import tune

from tests.hosts.drivers.trainables import read_checkpoint, write_checkpoint
from tests.local.trainables import FAILS_AT, STEPS
from tune_sync import RunConfig


def stumbles(config: dict[str, Any]) -> None:
    """Fails where it began at the beginning."""
    found, first = tune.get_checkpoint(), 0
    if found is not None:
        with found.as_directory() as directory:
            first = read_checkpoint(directory)["step"] + 1
    for step in range(first, STEPS):
        if (first, step) == (0, FAILS_AT):
            raise RuntimeError("stumbled")
        with tempfile.TemporaryDirectory() as made:
            write_checkpoint(Path(made), {}, {"step": step})
            tune.report({"step": step}, checkpoint=tune.Checkpoint.from_directory(made))


def steps(directory: Path) -> list[int]:
    return [read_checkpoint(found)["step"] for found in sorted(directory.glob("checkpoint_*"))]


@pytest.mark.lowest
@pytest.mark.parametrize("kind", ["trial_dirname_creator", "trial_name_creator"])
def test_a_restarted_trial_goes_on_from_nothing_of_the_old_one(
    local_ray: None, tmp_path: Path, kind: str
) -> None:
    creators: dict[str, Any] = {kind: lambda trial: "mine"}
    tuner = tune.Tuner(
        stumbles, tune_config=tune.TuneConfig(**creators),
        run_config=RunConfig(name="x", storage_path=tmp_path, verbose=0),
    )  # fmt: skip
    (result,) = tuner.fit()
    old = Path(result.path)
    failed, all_steps = list(range(FAILS_AT)), list(range(STEPS))
    path = str(tmp_path / "x")
    for _ in range(2):
        (result,) = tune.Tuner.restore(path, trainable=stumbles, restart_errored=True).fit()
        assert result.error is not None, "it stumbles where it begins, and not where it goes on"
        assert (steps(old), steps(Path(result.path))) == (failed, failed)
    (result,) = tune.Tuner.restore(path, trainable=stumbles, resume_errored=True).fit()
    assert result.error is None
    assert (steps(old), steps(Path(result.path))) == (failed, all_steps)
