"""A `fit()` that did not come to its end, in a process that lives on: a notebook."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import tune
from ray.util.placement_group import (
    PlacementGroup,
    placement_group_table,
    remove_placement_group,
)

from tests.hosts.drivers.trainables import read_checkpoint, train_n
from tests.local.trainables import FAILS_AT
from tune_sync import RunConfig, SyncConfig
from tune_sync.errors import ExperimentExistsError, LeaseHeldError
from tune_sync.homes.lease import read_holder
from tune_sync.layout import LEASE_KEY

WAIT_S = 120.0


@pytest.fixture(autouse=True)
def freed(local_ray: None) -> Iterator[None]:
    """Ray keeps trials of a `fit()` that is cut off, and their CPUs, until its process ends."""
    yield
    for number, group in placement_group_table().items():
        if group["state"] == "CREATED":
            remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(number))))


class CutsOff(tune.Callback):  # type: ignore[misc]
    """Raises, once."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def cut_off(self, error: BaseException) -> None:
        if not self.mark.exists():
            self.mark.touch()
            raise error


class Interrupts(CutsOff):
    """Ctrl-C, where Ray does not catch it."""

    def on_checkpoint(self, **info: Any) -> None:
        self.cut_off(KeyboardInterrupt())


class RaisesAtTheEnd(CutsOff):
    """A callback of a user's, with a fault."""

    def on_experiment_end(self, **info: Any) -> None:
        self.cut_off(ValueError("a fault of the user's"))


class Waits(tune.Callback):  # type: ignore[misc]
    """Holds the control loop until it is told."""

    seen, go = threading.Event(), threading.Event()

    def on_trial_start(self, **info: Any) -> None:
        self.seen.set()
        assert self.go.wait(WAIT_S)


def trains(config: dict[str, Any]) -> None:
    train_n({"settings": {"steps": FAILS_AT}})


def tuner(storage: Path, *callbacks: tune.Callback, **fields: Any) -> tune.Tuner:
    config = RunConfig(
        name="x", storage_path=storage, verbose=0, callbacks=list(callbacks),
        sync_config=SyncConfig(**fields),
    )  # fmt: skip
    return tune.Tuner(trains, run_config=config)


def cut_off(storage: Path, callback: type[CutsOff], **fields: Any) -> tune.Tuner:
    """A tuner whose `fit()` did not come to its end."""
    made = tuner(storage, callback(storage / "mark"), **fields)
    with pytest.raises((KeyboardInterrupt, ValueError)):
        made.fit()
    return made


@pytest.mark.parametrize(
    "wait_for",
    [
        pytest.param("stored", marks=[pytest.mark.slow, pytest.mark.lowest_slow]),
        pytest.param("staged", marks=pytest.mark.lowest),
    ],
)
@pytest.mark.parametrize("callback", [Interrupts, RaisesAtTheEnd])
def test_what_was_cut_off_is_resumed_in_the_same_process(
    local_ray: None, tmp_path: Path, callback: type[CutsOff], wait_for: str
) -> None:
    cut_off(tmp_path, callback, wait_for=wait_for)
    with pytest.raises(ExperimentExistsError, match=r"Tuner\.restore"):
        tuner(tmp_path)
    (result,) = tune.Tuner.restore(f"{tmp_path}/x", trains).fit()
    assert read_holder(tmp_path / "x" / LEASE_KEY) is None
    with result.checkpoint.as_directory() as directory:
        assert read_checkpoint(directory)["step"] == FAILS_AT - 1


def test_a_second_fit_of_what_was_cut_off_mixes_nothing(local_ray: None, tmp_path: Path) -> None:
    made = cut_off(tmp_path, RaisesAtTheEnd)
    with pytest.raises(ExperimentExistsError, match=r"Tuner\.restore"):
        made.fit()


def test_a_fit_that_goes_on_in_another_thread_is_not_replaced(
    local_ray: None, tmp_path: Path
) -> None:
    made, found = tuner(tmp_path, Waits()), list[tune.ResultGrid]()
    thread = threading.Thread(target=lambda: found.append(made.fit()))
    thread.start()
    assert Waits.seen.wait(WAIT_S)
    try:
        with pytest.raises(LeaseHeldError, match="in use by a live run"):
            tuner(tmp_path)
        with pytest.raises(LeaseHeldError, match="in use by a live run"):
            tune.Tuner.restore(f"{tmp_path}/x", trains).fit()
    finally:
        Waits.go.set()
        thread.join(WAIT_S)
    ((result,),) = found
    assert result.error is None
