"""A checkpoint is stored, whatever the user's own callbacks do as they are told of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray.cloudpickle
from ray import tune
from ray.tune import Checkpoint
from ray.tune.callback import CallbackList

from tests.unit.restored_run import MINE, Experiment
from tests.unit.staged import sealed
from tune_sync import RunConfig
from tune_sync.errors import NotStoredError
from tune_sync.hearing import PlacesFirst, around
from tune_sync.layout import checkpoint_name
from tune_sync.ray_adapter import SyncCallback
from tune_sync.restoring import ray_records


class Reads(tune.Callback):  # type: ignore[misc]
    """Opens what it is told of."""

    def __init__(self) -> None:
        self.read: list[bytes] = []

    def on_checkpoint(
        self, iteration: int, trials: list[Any], trial: Any, checkpoint: Any, **info: Any
    ) -> None:
        with checkpoint.as_directory() as directory:
            self.read.append(Path(directory, "model.pt").read_bytes())


class Raises(tune.Callback):  # type: ignore[misc]
    def on_checkpoint(
        self, iteration: int, trials: list[Any], trial: Any, checkpoint: Any, **info: Any
    ) -> None:
        raise RuntimeError("the tracking server does not answer")


class Driver:
    """Of Ray, what it does when a save has come to its end."""

    def __init__(self, experiment: Experiment) -> None:
        experiment.publish(MINE, 0)
        self.experiment, self.trial = experiment, experiment.trial(MINE, [0])
        self.ours = SyncCallback(experiment.filesystem)
        self.number = 0

    def saved(self, *callbacks: tune.Callback) -> bool:
        """Returns whether it would be registered."""
        self.number += 1
        key = f"{MINE}/{checkpoint_name(self.number)}"
        committer = self.experiment.run.home.committer
        attempt = sealed(committer, {"model.pt": b"weights"}, key)
        self.experiment.filesystem.handler.uploads.heard_of([(key, attempt, 0)])
        checkpoint = Checkpoint(str(self.experiment.root / key), self.experiment.filesystem)
        told = CallbackList(list(callbacks))
        where: dict[str, Any] = {"iteration": 0, "trials": [self.trial], "trial": self.trial}
        try:
            told.on_checkpoint(**where, checkpoint=checkpoint)
        except RuntimeError:
            told.on_trial_save(**where)
            return False
        told.on_trial_save(**where)
        return True

    def is_stored(self) -> bool:
        return (self.experiment.root / MINE / checkpoint_name(self.number) / "model.pt").exists()


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    experiment = Experiment(tmp_path)
    yield Driver(experiment)
    experiment.run.close()


def test_a_callback_of_the_user_may_open_what_it_is_told_of(driver: Driver) -> None:
    reads = Reads()
    assert driver.saved(*around([reads], driver.ours))
    assert reads.read == [b"weights"]
    assert driver.is_stored()


def test_what_a_callback_that_raises_keeps_from_ray_is_stored_and_its_number_is_not_used_again(
    driver: Driver,
) -> None:
    assert not driver.saved(*around([Raises()], driver.ours))
    assert driver.is_stored()
    assert ray_records.index_of(driver.trial) == 1
    assert driver.saved(*around([], driver.ours))
    assert driver.is_stored()


def test_what_a_callback_before_ours_keeps_from_us_is_stored(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    assert driver.saved(driver.ours)
    assert "a callback raised" not in caplog.text
    assert not driver.saved(Raises(), driver.ours)
    assert driver.is_stored()
    assert f"a callback raised as Ray told it of {driver.experiment.root}" in caplog.text
    assert ray_records.index_of(driver.trial) == 2


def test_one_that_cannot_be_stored_then_is_named_at_the_end(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **how: Any) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(driver.experiment.run.home.committer, "place", refuse)
    assert not driver.saved(Raises(), driver.ours)
    with pytest.raises(NotStoredError, match=r"checkpoint_000001: the disk is gone"):
        driver.ours.on_experiment_end([])


def test_a_run_config_has_ours_around_those_of_the_user_also_once_it_was_restored(
    tmp_path: Path,
) -> None:
    config = RunConfig(name="x", storage_path=tmp_path, callbacks=[Reads()])
    for each in (config, ray.cloudpickle.loads(ray.cloudpickle.dumps(config))):
        each.storage_filesystem = None  # as Ray does when it restores
        assert [type(c) for c in each.callbacks] == [PlacesFirst, Reads, SyncCallback]
        assert each.callbacks[0]._last is each.callbacks[2]


def test_in_one_of_an_older_version_the_others_keep_their_positions(tmp_path: Path) -> None:
    """Ray saves their states by these."""
    config = RunConfig(name="x", storage_path=tmp_path, callbacks=[Reads()])
    config.callbacks = config.callbacks[1:]
    config.storage_filesystem = None
    assert [type(c) for c in config.callbacks] == [Reads, SyncCallback]
