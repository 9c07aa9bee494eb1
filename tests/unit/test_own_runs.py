"""A run whose `fit()` is over and did not end it makes way for the next one of its process."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.restored_run import Here
from tests.unit.staged import CHECKPOINT, sealed
from tests.unit.test_run import STATE, TIMEOUT_S, finish_one, start
from tune_sync.errors import DamagedError, ExperimentExistsError, LeaseHeldError, LeaseLostError
from tune_sync.filesystem import SyncHandler
from tune_sync.homes import lease as lease_module
from tune_sync.homes.bucket import lease as bucket_lease
from tune_sync.homes.bucket.lease import BucketLease
from tune_sync.homes.lease import Holder, Lease, read_holder
from tune_sync.homes.sites import LocalSite
from tune_sync.layout import LEASE_KEY, manifest_key
from tune_sync.own_runs import Call
from tune_sync.run import Run
from tune_sync.spec import Options, Spec
from tune_sync.testing.memory_bucket import MemoryBucket

SECOND = "trial/checkpoint_000001"
RAY = "def fit(act): return act()\ndef run(act): return fit(act)\n"


def call_of_ray(name: str = "ray.tune.tuner") -> Callable[[Callable[[], Any]], Any]:
    """What calls as Ray does, two frames deep; of a module with that name."""
    module: dict[str, Any] = {"__name__": name}
    exec(compile(RAY, name, "exec"), module)
    return module["run"]  # type: ignore[no-any-return]


def saved(run: Run) -> None:
    """Save a state of the experiment."""
    Path(run.where, STATE).write_text(json.dumps({"trial_data": []}))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "exp"


def test_a_call_is_over_when_the_outermost_of_ray_has_returned_or_raised() -> None:
    call = Call()
    assert not call.is_over  # it did not begin

    def act() -> None:
        call.begin()
        assert not call.is_over
        raise KeyboardInterrupt

    def inner() -> None:
        with pytest.raises(KeyboardInterrupt):
            call_of_ray("ray.tune.impl.made")(act)
        assert call.is_over

    call_of_ray()(inner)  # as a trial, that has a Tuner of its own
    assert call.is_over
    call.forget()
    assert not call.is_over


@pytest.mark.parametrize("name", ["ray.tuned", "somebody"])
def test_what_is_called_by_nothing_of_ray_is_never_over(name: str) -> None:
    call = Call()
    call_of_ray(name)(call.begin)
    assert not call.is_over


def test_a_call_goes_on_in_another_thread_until_it_returns() -> None:
    call, seen, go = Call(), threading.Event(), threading.Event()

    def act() -> None:
        call.begin()
        seen.set()
        go.wait()

    thread = threading.Thread(target=call_of_ray(), args=(act,))
    thread.start()
    seen.wait()
    assert not call.is_over
    go.set()
    thread.join()
    assert call.is_over


@pytest.mark.parametrize("on_existing", ["error", "move_aside", "resume"])
def test_a_run_that_is_left_is_ended_before_the_next_one_begins(
    root: Path, runs: list[Run], on_existing: str
) -> None:
    first = start(root, runs)
    call_of_ray()(first.begin)
    attempt = sealed(first.home.committer, {"a": b"1"}, ranks_count=1)
    first.publish(CHECKPOINT, False, [attempt])
    saved(first)
    if on_existing == "error":
        with pytest.raises(ExperimentExistsError, match=r"Tuner\.restore"):
            start(root, runs, on_existing)
    else:
        second = start(root, runs, on_existing)
        found = second.home.info(manifest_key(CHECKPOINT))
        assert (found is not None) == (on_existing == "resume")
    assert first.closed
    if on_existing != "error":
        with pytest.raises(LeaseLostError):
            first.home.begin_file()


def test_what_still_publishes_when_it_was_told_twice_loses_its_lease_first(
    root: Path, runs: list[Run]
) -> None:
    """What is under way then may end, and nothing more is written."""
    reached, go = threading.Event(), threading.Event()
    first = Run.open(root, "error", 3600.0, 1)
    committer = first.home.committer

    class Hangs:
        def recorded(self, checkpoint: str) -> None:
            reached.set()
            go.wait()

        def retiring(self, checkpoint: str) -> None:
            pass

        def state_written(self) -> None:
            pass

        def flush(self) -> None:
            pass

        def close(self) -> None:
            pass

    first.watch(Hangs())

    def fit() -> None:
        first.begin()
        for checkpoint in (CHECKPOINT, SECOND):
            attempt = sealed(committer, {"a": b"1"}, checkpoint, ranks_count=1)
            first.publish(checkpoint, False, [attempt])
        saved(first)
        reached.wait()
        first.is_told_twice = True
        first.close()

    call_of_ray()(fit)
    second = start(root, runs, "resume")
    assert second.home.info(manifest_key(SECOND)) is not None  # by recovery
    go.set()
    assert first.publisher.close(TIMEOUT_S)
    assert list(first.publisher.failed()) == [SECOND]
    second.lease.check()


def test_an_experiment_that_came_up_since_it_was_looked_for_is_told_as_such(
    root: Path, runs: list[Run]
) -> None:
    class Raced(LocalSite):
        def prepare(self) -> None:
            finish_one(root)
            super().prepare()

    with pytest.raises(ExperimentExistsError, match=r"already in .*exp; do it otherwise"):
        Run.open(Raced(root), "error", TIMEOUT_S, 1, ways_out="do it otherwise")
    assert read_holder(root / LEASE_KEY) is None


def test_the_heartbeat_ends_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "HEARTBEAT_S", 0.01)
    monkeypatch.setattr(bucket_lease, "HEARTBEAT_S", 0.01)
    bucket = MemoryBucket()
    for lease in (Lease(tmp_path, "me"), BucketLease(bucket, "me")):
        goes_on = iter([True, True, False])
        lease.acquire(goes_on=lambda answers=goes_on: next(answers))  # type: ignore[misc]
        thread = lease._thread
        assert thread is not None
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
        lease.check()  # nobody has taken it yet
        lease.release()


def test_a_run_that_goes_on_in_this_process_is_not_replaced(root: Path, runs: list[Run]) -> None:
    first = start(root, runs)

    def fit() -> None:
        first.begin()
        with pytest.raises(LeaseHeldError, match="in use by a live run"):
            start(root, runs)

    call_of_ray()(fit)
    start(root, runs).lease.check()


def test_a_start_that_fails_keeps_no_earlier_one_of_its_process_from_training(
    root: Path, runs: list[Run]
) -> None:
    """What did not begin makes way; its `fit()` takes the directory again. So may a dead run."""
    finish_one(root)
    dead = Holder("dead", "far", 12, "another machine", "345", 0.0)
    (root / LEASE_KEY).write_text(dead.to_json())
    specs = [Spec(key, str(root.parent), "exp", "", None, Options()) for key in "ab"]
    handlers = [SyncHandler(spec, Here()) for spec in specs]
    for handler in handlers:
        handler.on_existing = "resume"
    runs.append(handlers[0].start())
    state = Path(root, STATE).read_bytes()
    Path(root, STATE).write_bytes(b"damaged")
    with pytest.raises(DamagedError):
        handlers[1].start()
    holder = read_holder(root / LEASE_KEY)
    assert holder is not None and holder.owner == "dead"  # its nodes may still send
    Path(root, STATE).write_bytes(state)
    runs.append(handlers[0].start())
    runs[-1].check_lease()
    assert runs[0].closed


def test_a_run_whose_directory_was_moved_away_keeps_nobody_out_there(
    root: Path, tmp_path: Path
) -> None:
    run, moved = Run.open(root, "error", TIMEOUT_S, 1), tmp_path / "moved"
    run.begin()
    saved(run)
    root.rename(moved)
    with pytest.raises(LeaseHeldError):
        Run.open(moved, "resume", TIMEOUT_S, 1)
    run.close()
    Run.open(moved, "resume", TIMEOUT_S, 1).close()
