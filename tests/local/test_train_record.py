"""Ray Train's own record names a checkpoint before it tells callbacks of it."""

from __future__ import annotations

import json
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
import ray
import ray.train

from tests.hosts.drivers.ranks import DataParallelTrainer
from tune_sync import SyncConfig, run_config_kwargs

try:  # the second generation
    from ray.train import UserCallback
except ImportError:
    UserCallback = object  # type: ignore[assignment, misc]

RANKS_COUNT, STEPS, KILLED_AT = 2, 3, 1


class Kills(UserCallback):  # type: ignore[misc]
    """Ends the controller between its record and whoever hears of a report after this, once.

    Args:
        notes: A directory.
    """

    def __init__(self, notes: Path) -> None:
        self._file = notes / "killed"

    def after_report(self, run_context: Any, metrics: list[Any], checkpoint: Any) -> None:
        if metrics[0]["step"] == KILLED_AT and not self._file.exists():
            self._file.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def loop(config: dict[str, Any]) -> None:
    rank, first = ray.train.get_context().get_world_rank(), 0
    found = ray.train.get_checkpoint()
    if found is not None:
        with found.as_directory() as folder:
            first = int(Path(folder, f"rank_{rank}").read_text()) + 1
    for step in range(first, STEPS):
        with (config["notes"] / f"steps_{rank}").open("a") as notes:
            notes.write(f"{step} ")
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, f"rank_{rank}").write_text(str(step))
            checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report({"step": step}, checkpoint=checkpoint)


def trainer(root: Path, notes: Path, on_existing: str) -> Any:
    kwargs = run_config_kwargs(
        SyncConfig(), storage_path=root, name="exp", api="train", on_existing=on_existing
    )
    kwargs["callbacks"].insert(0, Kills(notes))
    config = ray.train.RunConfig(
        **kwargs, checkpoint_config=ray.train.CheckpointConfig(num_to_keep=1)
    )
    return DataParallelTrainer(
        loop,
        train_loop_config={"notes": notes},
        scaling_config=ray.train.ScalingConfig(
            num_workers=RANKS_COUNT, resources_per_worker={"CPU": 0.4}
        ),
        run_config=config,
    )


def test_what_it_names_is_there_though_its_controller_is_killed_just_then(
    local_ray: None, tmp_path: Path
) -> None:
    root, notes = tmp_path / "results", tmp_path / "notes"
    notes.mkdir()
    with pytest.raises(ray.exceptions.ActorDiedError):
        trainer(root, notes, "error").fit()
    record = json.loads((root / "exp/checkpoint_manager_snapshot.json").read_text())
    for named in record["checkpoint_results"]:
        assert sorted(os.listdir(root / "exp" / named["checkpoint_dir_name"])) == [
            "rank_0", "rank_1",
        ]  # fmt: skip
    result = trainer(root, notes, "resume").fit()
    assert result.metrics["step"] == STEPS - 1
    for rank in range(RANKS_COUNT):  # the last one may have begun before the kill
        steps = [int(step) for step in (notes / f"steps_{rank}").read_text().split()]
        assert steps in ([0, 1, 2], [0, 1, 2, 2])
    (left,) = (root / "exp").glob("checkpoint_2*")
    assert sorted(os.listdir(left)) == ["rank_0", "rank_1"]
