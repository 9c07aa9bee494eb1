"""What the driver's background thread does, and in which order."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.staged import CHECKPOINT, placed
from tune_sync.errors import NotStoredError, SyncTimeoutError
from tune_sync.homes.commit import Committer
from tune_sync.homes.store import LocalStore
from tune_sync.manifest import Manifest
from tune_sync.publisher import Publisher
from tune_sync.testing.fault_store import Fault, FaultStore, os_error

TIMEOUT_S = 60.0


class Broken(Committer):
    """A committer whose `record` fails while it is broken."""

    broken = True

    def record(self, manifest: Manifest) -> None:
        if self.broken:
            raise OSError(errno.EIO, "Input/output error")
        super().record(manifest)


class Stopped(Committer):
    """A committer whose `record` and `retire` wait until they are let go."""

    def __init__(self, root: Path) -> None:
        super().__init__(LocalStore(root))
        self.entered = threading.Event()
        self.go_on = threading.Event()

    def record(self, manifest: Manifest) -> None:
        self._stop()
        super().record(manifest)

    def retire(self, checkpoint: str) -> None:
        self._stop()
        super().retire(checkpoint)

    def _stop(self) -> None:
        self.entered.set()
        assert self.go_on.wait(TIMEOUT_S)


@pytest.fixture
def committer(tmp_path: Path) -> Committer:
    return Committer(LocalStore(tmp_path))


@pytest.fixture
def publish() -> Iterator[Callable[[Committer], Publisher]]:
    made: list[Publisher] = []

    def make(committer: Committer) -> Publisher:
        made.append(Publisher(committer, "s3://bucket/exp"))
        return made[-1]

    yield make
    for publisher in made:
        publisher.close(TIMEOUT_S)


Make = Callable[[Committer], Publisher]


def test_what_was_placed_is_published_once_drained(committer: Committer, publish: Make) -> None:
    publisher = publish(committer)
    manifest = placed(committer, {"a": b"1"})
    assert committer.manifest(CHECKPOINT) is None
    publisher.record_later(manifest)
    publisher.drain(TIMEOUT_S)
    assert committer.manifest(CHECKPOINT) == manifest


def test_a_failed_record_is_raised_by_drain_and_tried_again_by_the_next(
    tmp_path: Path, publish: Make
) -> None:
    committer = Broken(LocalStore(tmp_path))
    manifest = placed(committer, {"a": b"1"})
    publisher = publish(committer)
    publisher.record_later(manifest)
    with pytest.raises(NotStoredError, match=rf"{CHECKPOINT}.*Input/output error"):
        publisher.drain(TIMEOUT_S)
    assert committer.manifest(CHECKPOINT) is None
    committer.broken = False
    publisher.drain(TIMEOUT_S)
    assert committer.manifest(CHECKPOINT) == manifest


def test_drain_says_what_it_waits_for_when_the_disk_hangs(tmp_path: Path, publish: Make) -> None:
    committer = Stopped(tmp_path)
    publisher = publish(committer)
    publisher.record_later(placed(committer, {"a": b"1"}))
    with pytest.raises(SyncTimeoutError, match=r"1 checkpoints .*does s3://bucket/exp answer"):
        publisher.drain(0.05)
    committer.go_on.set()
    publisher.drain(TIMEOUT_S)


def test_a_delete_waits_for_two_state_writes(committer: Committer, publish: Make) -> None:
    publisher = publish(committer)
    committer.record(placed(committer, {"a": b"1"}))
    publisher.state_written()
    publisher.retire_later(CHECKPOINT)
    publisher.settle(TIMEOUT_S)
    assert committer.manifest(CHECKPOINT) is not None
    publisher.state_written()
    publisher.settle(TIMEOUT_S)
    assert committer.manifest(CHECKPOINT) is not None
    publisher.state_written()
    publisher.settle(TIMEOUT_S)
    assert committer.store.info(CHECKPOINT) is None


def test_one_state_write_is_enough_at_the_end(committer: Committer, publish: Make) -> None:
    publisher = publish(committer)
    committer.record(placed(committer, {"a": b"1"}))
    publisher.retire_later(CHECKPOINT)
    publisher.flush(TIMEOUT_S)
    assert committer.manifest(CHECKPOINT) is not None, "the state on disk may still name it"
    publisher.state_written()
    publisher.flush(TIMEOUT_S)
    assert committer.store.info(CHECKPOINT) is None


def test_states_that_were_made_before_a_delete_do_not_count_for_it(
    committer: Committer, publish: Make, caplog: pytest.LogCaptureFixture
) -> None:
    publisher = publish(committer)
    committer.record(placed(committer, {"a": b"1"}))
    made_since = list[bool]()
    publisher.retire_later(CHECKPOINT, lambda: bool(made_since))
    for _ in range(3):
        publisher.state_written()
    publisher.flush(TIMEOUT_S)
    assert committer.manifest(CHECKPOINT) is not None
    assert "s3://bucket/exp: 1 checkpoints that were deleted stay" in caplog.text
    made_since.append(True)
    publisher.state_written()
    publisher.settle(TIMEOUT_S)
    assert committer.store.info(CHECKPOINT) is None


def test_a_name_that_is_used_again_is_not_deleted(committer: Committer, publish: Make) -> None:
    publisher = publish(committer)
    committer.record(placed(committer, {"a": b"1"}))
    publisher.retire_later(CHECKPOINT)
    publisher.state_written()
    publisher.keep(CHECKPOINT, TIMEOUT_S)
    publisher.record_later(placed(committer, {"a": b"2"}))
    for _ in range(3):
        publisher.state_written()
    publisher.flush(TIMEOUT_S)
    assert committer.store.read(f"{CHECKPOINT}/a") == b"2"


def test_a_delete_that_is_queued_does_not_hit_the_next_of_that_name(
    tmp_path: Path, publish: Make
) -> None:
    committer = Stopped(tmp_path)
    Committer(committer.store).record(placed(committer, {"a": b"1"}))
    publisher = publish(committer)
    other = placed(committer, {"a": b"x"}, "trial/checkpoint_000001")
    publisher.record_later(other)
    assert committer.entered.wait(TIMEOUT_S)  # the thread is busy, what follows is queued
    publisher.retire_later(CHECKPOINT)
    publisher.state_written()
    publisher.state_written()
    publisher.keep(CHECKPOINT, TIMEOUT_S)
    publisher.record_later(placed(committer, {"a": b"2"}))
    committer.go_on.set()
    publisher.flush(TIMEOUT_S)
    assert committer.store.read(f"{CHECKPOINT}/a") == b"2"
    assert committer.manifest(CHECKPOINT) is not None


def test_a_name_being_deleted_is_used_again_only_afterwards(tmp_path: Path, publish: Make) -> None:
    committer = Stopped(tmp_path)
    Committer(committer.store).record(placed(committer, {"a": b"1"}))
    publisher = publish(committer)
    publisher.retire_later(CHECKPOINT)
    publisher.state_written()
    publisher.state_written()
    assert committer.entered.wait(TIMEOUT_S)
    kept = threading.Thread(target=publisher.keep, args=(CHECKPOINT, TIMEOUT_S))
    kept.start()
    kept.join(0.1)
    assert kept.is_alive(), "the delete is under way"
    committer.go_on.set()
    kept.join(TIMEOUT_S)
    publisher.record_later(placed(committer, {"a": b"2"}))
    publisher.flush(TIMEOUT_S)
    assert committer.store.read(f"{CHECKPOINT}/a") == b"2"


@pytest.mark.parametrize("done", ["published", "deleted"])
def test_a_name_whose_disk_hangs_is_not_waited_for_for_ever(
    tmp_path: Path, publish: Make, done: str
) -> None:
    committer = Stopped(tmp_path)
    publisher = publish(committer)
    if done == "published":
        publisher.record_later(placed(committer, {"a": b"1"}))
    else:
        publisher.retire_now(CHECKPOINT)
    assert committer.entered.wait(TIMEOUT_S)
    for wait in (publisher.wait_for, publisher.keep):
        says = rf"{CHECKPOINT}: .* is still being {done} after .* does s3://bucket/exp answer"
        with pytest.raises(SyncTimeoutError, match=says):
            wait(CHECKPOINT, 0.05)
    committer.go_on.set()
    publisher.wait_for(CHECKPOINT, TIMEOUT_S)


def test_a_checkpoint_that_was_deleted_need_not_be_recorded_any_more(
    tmp_path: Path, publish: Make
) -> None:
    """State is told of as written only once `drain` returned for it."""
    committer = Broken(LocalStore(tmp_path))
    manifest = placed(committer, {"a": b"1"})
    publisher = publish(committer)
    publisher.record_later(manifest)
    publisher.retire_later(CHECKPOINT, is_before=lambda version: version > 1)
    with pytest.raises(NotStoredError):
        publisher.drain(TIMEOUT_S, 1)
    for _ in range(2):
        publisher.drain(TIMEOUT_S, 2)
        publisher.state_written()
    publisher.settle(TIMEOUT_S)
    assert committer.store.info(CHECKPOINT) is None


def test_a_delete_that_fails_costs_nothing_and_is_said(
    tmp_path: Path, publish: Make, caplog: pytest.LogCaptureFixture
) -> None:
    plain = Committer(LocalStore(tmp_path))
    plain.record(placed(plain, {"a": b"1"}))
    fault = Fault(1, os_error(errno.EIO), verbs=frozenset({"rename"}))
    publisher = publish(Committer(FaultStore(plain.store, fault)))
    publisher.retire_later(CHECKPOINT)
    publisher.state_written()
    publisher.flush(TIMEOUT_S)
    assert plain.store.read(f"{CHECKPOINT}/a") == b"1"
    assert f"cannot delete {CHECKPOINT}" in caplog.text


def test_staging_of_writers_that_are_gone_is_dropped(committer: Committer, publish: Make) -> None:
    attempt = committer.begin(CHECKPOINT)
    publisher = publish(committer)
    publisher.discard_later([(CHECKPOINT, attempt)])
    publisher.settle(TIMEOUT_S)
    assert committer.attempts("trial") == []


def test_a_trial_that_ends_leaves_what_is_placed_and_not_recorded_yet(committer: Committer) -> None:
    manifest = placed(committer, {"a": b"1"})
    assert committer.attempts("trial") == []  # its intent is needed if the driver dies now
    committer.record(manifest)
    assert committer.manifest(CHECKPOINT) == manifest


def test_close_does_what_is_queued_and_may_be_called_twice(
    committer: Committer, publish: Make
) -> None:
    publisher = publish(committer)
    publisher.record_later(placed(committer, {"a": b"1"}))
    publisher.close(TIMEOUT_S)
    publisher.close(TIMEOUT_S)
    assert committer.manifest(CHECKPOINT) is not None


def test_a_delete_that_fails_is_tried_again_with_the_next_and_at_the_end(
    tmp_path: Path, publish: Make
) -> None:
    store = LocalStore(tmp_path)
    committer, fails = Committer(store), [True, True]
    retire = committer.retire

    def fail_first(checkpoint: str) -> None:
        if fails and fails.pop():
            raise OSError(errno.EIO, "Input/output error")
        retire(checkpoint)

    committer.retire = fail_first  # type: ignore[method-assign]
    publisher = publish(committer)
    committer.record(placed(committer, {"a": b"1"}))
    publisher.retire_now(CHECKPOINT)
    publisher.settle(TIMEOUT_S)
    publisher.state_written()
    publisher.settle(TIMEOUT_S)
    assert committer.manifest(CHECKPOINT) is not None and not fails
    publisher.flush(TIMEOUT_S)
    assert committer.store.info(CHECKPOINT) is None


def test_a_delete_that_fails_while_its_name_is_taken_again_does_not_hit_the_new_one(
    tmp_path: Path, publish: Make
) -> None:
    committer = Committer(LocalStore(tmp_path))
    entered, goes_on = threading.Event(), threading.Event()

    def fail_late(checkpoint: str) -> None:
        entered.set()
        assert goes_on.wait(TIMEOUT_S)
        raise OSError(errno.EIO, "Input/output error")

    publisher, retire = publish(committer), committer.retire
    committer.record(placed(committer, {"a": b"1"}))
    committer.retire = fail_late  # type: ignore[method-assign]
    publisher.retire_now(CHECKPOINT)
    assert entered.wait(TIMEOUT_S)
    threading.Timer(0.1, goes_on.set).start()
    publisher.keep(CHECKPOINT, TIMEOUT_S)
    committer.retire = retire  # type: ignore[method-assign]
    publisher.record_later(placed(committer, {"a": b"2"}))
    publisher.flush(TIMEOUT_S)
    assert committer.store.read(f"{CHECKPOINT}/a") == b"2"
