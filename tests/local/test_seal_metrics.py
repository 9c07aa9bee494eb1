"""A seal holds what was reported with a checkpoint, as Ray has it when the copy is at its end."""

from __future__ import annotations

from pathlib import Path

import pytest
from ray import tune
from ray.train import SyncConfig
from ray.train._internal.storage import StorageContext

from tests.unit.test_complete_parts import filesystem_with, seals
from tests.unit.test_late_errors import copy
from tune_sync.homes.home import LocalHome
from tune_sync.spec import Options


class Saved(tune.Trainable):
    """A trainable as Ray's actors run it."""

    def step(self) -> dict[str, float]:
        return {"loss": 0.5}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        Path(checkpoint_dir, "a").write_text("a")


@pytest.mark.lowest
def test_ray_has_the_metrics_where_the_seal_looks_for_them(local_ray: None, tmp_path: Path) -> None:
    """Of a class; `test_periods` has a function."""
    for directory in ("home/x", "source"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "source/a").write_text("a")
    home = LocalHome(tmp_path / "home/x")
    (home.root / ".validate_storage_marker").touch()
    filesystem = filesystem_with(home, Options(wait_for="staged"))
    storage = StorageContext(
        str(tmp_path / "home"), "x", storage_filesystem=filesystem, trial_dir_name="trial",
        sync_config=SyncConfig(),
    )  # fmt: skip
    trainable = Saved(storage=storage)
    trainable.train()
    trainable.save()
    (seal,) = seals(home)
    assert seal.metrics is not None
    assert (seal.metrics["loss"], seal.metrics["training_iteration"]) == (0.5, 1)
    copy(tmp_path / "source", filesystem, 5)  # what is copied otherwise has none
    (other,) = (found for found in seals(home) if found != seal)
    assert other.metrics is None
