"""What `fit()` raises when the loop has ended."""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.restored_run import MINE, Experiment
from tests.unit.staged import sealed
from tune_sync.errors import HomeLostError, LeaseLostError, NotStoredError, RanksDisagreeError
from tune_sync.homes.lease import read_holder
from tune_sync.layout import LEASE_KEY, checkpoint_name
from tune_sync.ray_adapter import SyncCallback
from tune_sync.testing.fault_store import Fault, FaultStore, os_error

LIMIT_S = 20.0


@pytest.fixture
def experiment(tmp_path: Path) -> Iterator[Experiment]:
    made = Experiment(tmp_path)
    yield made
    made.run.close()


def end(experiment: Experiment) -> None:
    SyncCallback(experiment.filesystem).on_experiment_end([])


def test_a_run_that_ends_well_gives_its_directory_back(experiment: Experiment) -> None:
    end(experiment)
    assert experiment.run.closed
    end(experiment)


def test_what_was_refused_is_named(experiment: Experiment) -> None:
    experiment.run.refused["x/trial/checkpoint_000001"] = ValueError("for a reason")
    with pytest.raises(
        NotStoredError, match=r"checkpoint_000001: for a reason; what is stored .*restore"
    ):
        end(experiment)
    assert experiment.run.closed


def test_an_error_of_the_tidying_does_not_hide_what_is_not_stored(
    experiment: Experiment, caplog: pytest.LogCaptureFixture
) -> None:
    committer = experiment.run.home.committer
    broken = Fault(1, os_error(errno.EIO), lasting=True, verbs=frozenset({"remove_tree"}))
    committer.store = FaultStore(committer.store, broken)
    experiment.run.refused["x/trial/checkpoint_000001"] = RanksDisagreeError("for a reason")
    with pytest.raises(NotStoredError, match="checkpoint_000001: for a reason"):
        end(experiment)
    assert "staging is not tidied" in caplog.text
    assert read_holder(experiment.root / LEASE_KEY) is None


def test_an_error_of_the_tidying_fails_no_run_that_is_stored(experiment: Experiment) -> None:
    committer = experiment.run.home.committer
    broken = Fault(1, os_error(errno.EIO), lasting=True, verbs=frozenset({"remove_tree"}))
    committer.store = FaultStore(committer.store, broken)
    end(experiment)
    assert experiment.run.closed


def test_a_run_that_was_taken_over_says_so_whatever_it_could_not_store(
    experiment: Experiment,
) -> None:
    committer = experiment.run.home.committer
    key = f"{MINE}/{checkpoint_name(0)}"
    sealed(committer, {"model": b"bytes"}, key)
    placed = committer.place(key)
    lease = experiment.root / LEASE_KEY
    lease.write_text(json.dumps({**json.loads(lease.read_text()), "owner": "another"}))
    experiment.run.publisher.record_later(placed.manifest)
    with pytest.raises(LeaseLostError, match="no longer owned by this run"):
        end(experiment)
    assert json.loads(lease.read_text())["owner"] == "another"


def test_files_that_trials_could_not_store_are_named(experiment: Experiment) -> None:
    connector = experiment.filesystem.handler.connector
    connector.told = {f"{MINE}/note.txt": "the disk is full"}
    with pytest.raises(NotStoredError, match=rf"{MINE}/note.txt: the disk is full"):
        end(experiment)


def test_an_end_that_cannot_find_out_what_trials_stored_says_so(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = experiment.filesystem.handler

    def unstored(spec: object) -> None:
        raise HomeLostError("the home agent does not answer")

    monkeypatch.setattr(handler.connector, "unstored", unstored)
    handler.files.unstored["state"] = OSError("no room")
    with pytest.raises(NotStoredError, match="state: no room; files of trials: the home agent"):
        end(experiment)
    assert experiment.run.closed


class SecondPlace:
    """One that somebody interrupts where it is told to, and that closes only when it may."""

    def __init__(self, *, is_interrupted: bool) -> None:
        self.is_interrupted, self.may_close = is_interrupted, threading.Event()

    def recorded(self, checkpoint: str) -> None:
        pass

    def retiring(self, checkpoint: str) -> None:
        pass

    def state_written(self) -> None:
        pass

    def flush(self) -> None:
        if self.is_interrupted:
            raise KeyboardInterrupt

    def close(self) -> None:
        self.may_close.wait()


@pytest.mark.parametrize("waits_for", ["state", "second place"])
def test_who_is_told_twice_to_stop_waits_for_nothing(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch, waits_for: str
) -> None:
    """Ray takes the first Ctrl-C for the end of the run, and the second one comes in that."""
    place, told = SecondPlace(is_interrupted=waits_for != "state"), list[BaseException]()
    experiment.run.watch(place)

    def interrupted(timeout_s: float) -> None:
        raise KeyboardInterrupt

    if waits_for == "state":
        monkeypatch.setattr(experiment.filesystem.handler.files, "flush", interrupted)

    def stop() -> None:
        try:
            end(experiment)
        except KeyboardInterrupt as error:
            told.append(error)

    thread = threading.Thread(target=stop, daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    is_over = not thread.is_alive()
    place.may_close.set()
    thread.join()
    assert is_over and told
