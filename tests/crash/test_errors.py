"""Errors without a crash: once, for good, or after the work was done."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterator

import pytest

from tests.crash.invariants import (
    check_at_once,
    check_clean,
    check_recovered,
    tree,
    visible_checkpoints,
)
from tests.crash.ledger import Ledger, with_directories
from tests.crash.loop import WHENS, explore
from tests.crash.run import Run
from tests.crash.scenarios import C1, ONE, SCENARIOS
from tests.crash.steps import Action
from tests.manifests import manifests_of
from tune_sync.errors import StoreFullError
from tune_sync.homes.commit import Committer
from tune_sync.testing.crash_store import CrashStore
from tune_sync.testing.fault_store import (
    ALL_VERBS,
    CHANGING_VERBS,
    Fault,
    FaultStore,
    full,
    os_error,
)

STORIES = [name for name in SCENARIOS if "by_hand" not in name]
NEEDS_ROOM = frozenset({"make_dir", "write_at", "link", "rename"})
NEW = "trial_b/checkpoint_000000"


class TryingAgain(Run):
    """A driver that does a failed step once more."""

    def do(self, action: Action) -> None:
        try:
            action()
        except OSError:
            action()


def one_error_each(name: str, verbs: frozenset[str]) -> Iterator[tuple[Fault, CrashStore, Ledger]]:
    for at_count in itertools.count(1):
        for when in WHENS:
            fault = Fault(at_count, os_error(errno.EIO), when=when, verbs=verbs)
            disk, ledger = CrashStore(), Ledger()
            store = FaultStore(disk, fault)
            SCENARIOS[name](TryingAgain(store, ledger))
            yield fault, disk, ledger
        if store.count(verbs) < at_count:
            return


@pytest.mark.parametrize("verbs", [CHANGING_VERBS, ALL_VERBS - CHANGING_VERBS])
@pytest.mark.parametrize("name", STORIES)
def test_a_step_that_failed_once_may_be_done_again(name: str, verbs: frozenset[str]) -> None:
    """Whether the error came before the work, in its middle, or after it."""
    for fault, disk, ledger in one_error_each(name, verbs):
        expected = dict(ledger.recorded)
        assert dict(visible_checkpoints(disk)) == expected, fault
        assert {m.checkpoint for m in manifests_of(Committer(disk))} == set(expected), fault
        for after in (disk.crash("lose"), disk.crash("kill")):
            check_at_once(after, ledger)
            Committer(after).recover()
            check_recovered(after, ledger, process_only=True)


@pytest.mark.parametrize("verbs", [CHANGING_VERBS, NEEDS_ROOM])
@pytest.mark.parametrize("name", STORIES)
def test_a_full_disk_leaves_intact_what_was_stored(name: str, verbs: frozenset[str]) -> None:
    """And once there is room, a new attempt publishes."""
    for at_count in itertools.count(1):
        disk, ledger = CrashStore(), Ledger()
        store = FaultStore(disk, Fault(at_count, full, lasting=True, verbs=verbs))
        run = TryingAgain(store, ledger)
        try:
            SCENARIOS[name](run)
        except StoreFullError:
            check_at_once(disk, ledger)
            _check_kept(disk, ledger)
            run.committer.store = run.store = disk  # somebody made room
            run.publish(NEW, ONE)
            run.publish(C1, ONE)
            check_at_once(disk, ledger)
            Committer(disk).recover()
            check_recovered(disk, ledger, process_only=True)
        else:  # not hit, or by what only wanted to make room
            check_at_once(disk, ledger)
            _check_kept(disk, ledger)
            if store.count(verbs) < at_count:
                return


def _check_kept(disk: CrashStore, ledger: Ledger) -> None:
    visible = dict(visible_checkpoints(disk))
    published = {manifest.checkpoint for manifest in manifests_of(Committer(disk))}
    for checkpoint, whole in ledger.recorded.items():
        if checkpoint not in ledger.retiring | ledger.replacing:
            assert checkpoint in published and visible[checkpoint] == whole


def test_a_late_write_to_a_dropped_attempt_fails() -> None:
    disk = CrashStore()
    run = Run(disk, Ledger())
    attempt = run.write(C1, ONE)
    run.committer.discard_attempt(C1, attempt)
    with pytest.raises(FileNotFoundError):
        disk.write_at(f".tune_sync/staging/{C1}/{attempt}/data/late", 0, b"late")
    run.publish(C1, ONE)
    assert dict(visible_checkpoints(disk)) == {C1: with_directories(ONE)}
    Committer(disk).recover()
    check_clean(disk)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["two_ranks", "replace_published", "retire_after_state"])
def test_promises_hold_after_an_error_and_then_a_crash(name: str) -> None:
    for at_count, when in itertools.product(range(1, 140, 5), WHENS):
        fault = Fault(at_count, os_error(errno.EIO), when=when)
        explore(SCENARIOS[name], make_run=TryingAgain, faults=[fault])


def test_what_makes_room_works_where_there_is_none() -> None:
    """Deletes and dropped attempts free their bytes on a disk where no move is possible."""
    disk = CrashStore()
    run = Run(disk, Ledger())
    run.publish(C1, ONE)
    attempt = run.write(NEW, ONE)
    faults = FaultStore(disk, Fault(1, full, lasting=True, verbs=NEEDS_ROOM))
    committer = Committer(faults)
    committer.discard_attempt(NEW, attempt)
    committer.retire(C1)
    # Three moves, of attempt, manifest and checkpoint; and the mark of what goes in its place.
    assert faults.count(NEEDS_ROOM) == 4
    assert dict(visible_checkpoints(disk)) == {}
    assert not [key for key in tree(disk, "") if key.endswith("model.bin")]
