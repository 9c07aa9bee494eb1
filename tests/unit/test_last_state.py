"""At the end of a run a delete goes only after a state that was made after it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.tune import Checkpoint

from tests.unit.restored_run import MINE, Experiment
from tests.unit.test_run_left import Silent
from tune_sync.layout import checkpoint_name
from tune_sync.ray_adapter import SyncCallback
from tune_sync.versions import Versions

OLD, NEW = f"{MINE}/{checkpoint_name(0)}", f"{MINE}/{checkpoint_name(1)}"


class Driver:
    """Of Ray, what it does of a run with two checkpoints, of which it deletes the first."""

    def __init__(self, experiment: Experiment, *, behind: bool) -> None:
        self.experiment = experiment
        self.filesystem = experiment.filesystem
        self.callback = SyncCallback(self.filesystem)
        experiment.publish(MINE, 0, 1)
        if behind:
            experiment.run.write_behind(Silent())
        experiment.run.note_latest(NEW)
        self.file = f"{experiment.root}/experiment_state-2026.json"
        self.body = b"{}"

    def make(self, names: str) -> None:
        """Make a version of the state."""
        self.body = f'{{"trial_data": [], "names": "{names}"}}'.encode()
        assert self.callback.get_state() is None

    def copy(self) -> None:
        """Copy it, as a thread of Ray does."""
        with self.filesystem.open_output_stream(self.file) as stream:
            stream.write(self.body)

    def delete(self) -> None:
        self.filesystem.delete_dir(f"{self.experiment.root}/{OLD}")

    def end(self) -> bool:
        """End the run; returns whether the first checkpoint is still there."""
        self.callback.on_experiment_end([])
        return (self.experiment.root / OLD).is_dir()


@pytest.fixture(params=[False, True], ids=["at once", "behind"])
def driver(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Driver]:
    experiment = Experiment(tmp_path)
    yield Driver(experiment, behind=request.param)
    experiment.run.close()


def test_a_version_made_before_the_delete_and_copied_after_it_keeps_what_it_names(
    driver: Driver,
) -> None:
    driver.make("old")
    driver.delete()
    driver.copy()
    assert driver.end(), "the loop ended by an exception, and the state names it"


def test_a_last_version_that_never_arrives_does_not_count(driver: Driver) -> None:
    driver.make("old")
    driver.delete()
    driver.copy()
    driver.make("new")  # Ray only logs that it could not be copied
    assert driver.end()


def test_a_version_that_is_being_copied_when_the_loop_deletes_does_not_count(
    driver: Driver,
) -> None:
    driver.make("old")
    with driver.filesystem.open_output_stream(driver.file) as stream:
        stream.write(driver.body)
        driver.delete()
        driver.make("new")
    assert driver.end()


def test_of_versions_that_wait_to_be_put_each_may_be_older_than_the_delete(tmp_path: Path) -> None:
    """As in a bucket, where one object is put no more than once a second."""
    experiment = Experiment(tmp_path)
    driver = Driver(experiment, behind=False)
    driver.make("old")
    with driver.filesystem.open_output_stream(driver.file) as first:
        first.write(driver.body)
        driver.make("old, and more")
        with driver.filesystem.open_output_stream(driver.file) as second:
            second.write(driver.body)
            driver.delete()
    experiment.run.publisher.settle(1.0)
    assert (experiment.root / OLD).is_dir(), "the state names it"
    assert driver.end()


def test_once_the_last_version_has_arrived_the_delete_goes(driver: Driver) -> None:
    driver.make("old")
    driver.copy()
    driver.delete()
    driver.make("new")
    driver.copy()
    assert not driver.end()


def test_a_restore_does_what_was_left(driver: Driver) -> None:
    driver.make("old")
    driver.delete()
    driver.copy()
    assert driver.end()
    again = Experiment(driver.experiment.root.parent, on_existing="resume")
    trial = again.trial(saved=[0], num_to_keep=1)
    again.adopt(trial)
    assert again.doomed() == {f"{MINE}/0"}
    assert isinstance(trial.checkpoint, Checkpoint)
    assert trial.checkpoint.path.endswith(NEW)
    again.run.close()


def test_an_earlier_run_s_state_that_is_copied_again_says_nothing(driver: Driver) -> None:
    earlier = f"{driver.experiment.root}/experiment_state-2025.json"
    Path(earlier).write_bytes(b'{"names": "earlier"}')
    driver.experiment.filesystem.handler.files.learn(driver.experiment.run)
    driver.delete()
    driver.make("new")
    with driver.filesystem.open_output_stream(earlier) as stream:
        stream.write(b'{"names": "earlier"}')
    assert not driver.experiment.run.versions.is_last_here
    assert driver.end()


def test_versions() -> None:
    versions = Versions()
    assert versions.is_last_here
    versions.made()
    early = versions.copying()
    is_unnamed = versions.deleted()
    assert not versions.is_last_here
    early()
    assert not versions.is_last_here
    versions.made()
    late = versions.copying()
    assert not versions.is_last_here
    assert not is_unnamed()
    late()
    early()
    assert versions.is_last_here and is_unnamed()
