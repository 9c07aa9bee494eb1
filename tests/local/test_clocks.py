"""A restore by a driver whose clock says less than that of the driver before."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow.fs as pafs
import pytest
from ray import tune

from tests.hosts.drivers.trainables import read_checkpoint
from tests.local.trainables import FAILS_AT, STEPS, stumbles
from tune_sync import RunConfig


def set_zone(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()


@pytest.mark.lowest
def test_ray_alone_goes_on_from_what_the_last_run_saved(
    local_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RunConfig(
        name="x", storage_path=tmp_path, verbose=0,
        checkpoint_config=tune.CheckpointConfig(num_to_keep=1),
    )  # fmt: skip
    path = str(tmp_path / "x")
    try:
        set_zone("Asia/Tokyo", monkeypatch)
        (first,) = tune.Tuner(stumbles, run_config=config).fit()
        assert first.error is not None and first.metrics["step"] == FAILS_AT - 1
        set_zone("UTC", monkeypatch)
        (second,) = tune.Tuner.restore(path, stumbles, resume_errored=True).fit()
        assert second.metrics["step"] == STEPS - 1
        (told,) = tune.Tuner.restore(
            path, stumbles, storage_filesystem=pafs.LocalFileSystem()
        ).get_results()
        assert told.error is None and told.metrics["step"] == STEPS - 1
        with told.checkpoint.as_directory() as directory:
            assert read_checkpoint(directory)["step"] == STEPS - 1
    finally:
        monkeypatch.undo()
        time.tzset()
