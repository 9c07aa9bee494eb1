"""What the state says of trials, where only each trial's newest checkpoint travels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.tune.experiment import Trial

from tests.unit.restored_run import MINE, OTHER, Experiment
from tune_sync.layout import checkpoint_name
from tune_sync.restoring import ray_records
from tune_sync.restoring.dropped_saves import DroppedSaves
from tune_sync.restoring.written_records import WrittenRecords
from tune_sync.sending.gate import Gate
from tune_sync.sending.periodic import PeriodicBacklog
from tune_sync.sending.turns import Turns

FIRST, SECOND = (f"{MINE}/{checkpoint_name(n)}" for n in (0, 1))


class Periodic:
    """A run's driver side of write-behind, without threads: turns are an hour long."""

    edits_state = True

    def __init__(self) -> None:
        self.backlog = PeriodicBacklog(Gate(), Turns(3600.0, 0.0))

    @contextmanager
    def periodic(self) -> Iterator[PeriodicBacklog]:
        yield self.backlog


class Driver:
    """A donor, whose first checkpoint is registered and waits for its turn."""

    def __init__(self, root: Path) -> None:
        self.of = Experiment(root)
        self.behind = Periodic()
        self.backlog = self.behind.backlog
        self.run: Any = SimpleNamespace(behind=self.behind, root=self.of.run.root)
        self.written, self.saves = WrittenRecords(), DroppedSaves()
        self.donor = self.of.trial(MINE, status=Trial.PAUSED)
        self.register(0)

    def register(self, number: int) -> None:
        self.accept(number)
        result = self.of.result(MINE, number)
        self.written.registering(self.run, self.donor, result.checkpoint)
        ray_records.register(self.donor, result)

    def accept(self, number: int) -> None:
        key = f"{MINE}/{checkpoint_name(number)}"
        self.backlog.accept(key, False, [f"a{number}@node"], None)

    def publish(self, checkpoint: str) -> None:
        """It travels before its turn, as another trial is about to load it."""
        self.backlog.published(checkpoint)

    def named(self) -> set[str]:
        self.written.refresh(self.run)
        return set(self.backlog._named[MINE].names)

    def register_dropped(self) -> None:
        """The donor starts again: Ray hears of the saves that it dropped."""
        self.saves.register(
            self.donor, lambda found: self.written.registering(self.run, self.donor, found)
        )


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    return Driver(tmp_path)


def test_a_dropped_save_that_is_stored_before_ray_registers_it_is_named_then(
    driver: Driver,
) -> None:
    driver.accept(1)
    driver.saves.keep(driver.donor, driver.of.result(MINE, 1))
    driver.publish(SECOND)
    assert driver.named() == set(), "Ray knows none that is stored"
    driver.publish(FIRST)
    assert driver.named() == {FIRST}
    driver.register_dropped()
    assert driver.named() == {FIRST, SECOND}


def test_a_dropped_save_that_ray_registers_is_not_named_before_it_is_stored(
    driver: Driver,
) -> None:
    driver.accept(1)
    driver.saves.keep(driver.donor, driver.of.result(MINE, 1))
    driver.register_dropped()
    assert driver.named() == set()
    assert FIRST not in driver.backlog.on_their_way(MINE), "an older one has no turn any more"
    driver.publish(SECOND)
    assert driver.named() == {SECOND}


def test_the_first_save_of_a_trial_is_not_named_before_it_is_stored_though_ray_dropped_it(
    driver: Driver,
) -> None:
    other = driver.of.trial(OTHER, trial_id="2")
    key = f"{OTHER}/{checkpoint_name(0)}"
    driver.backlog.accept(key, False, ["b0@node"], None)
    driver.saves.keep(other, driver.of.result(OTHER, 0))
    driver.saves.register(other, lambda found: driver.written.registering(driver.run, other, found))
    driver.written.refresh(driver.run)
    assert driver.backlog._named[OTHER].names == frozenset()
    driver.publish(key)
    driver.written.refresh(driver.run)
    assert driver.backlog._named[OTHER].names == {key}
