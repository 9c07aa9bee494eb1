"""The checks themselves see damage, with digests and, where lengths differ, without."""

from __future__ import annotations

import pytest

from tests.crash.invariants import STATE_KEY, ViolatedError, check_at_once, check_recovered
from tests.crash.ledger import Ledger
from tests.crash.run import Run
from tests.crash.scenarios import C0, ONE
from tune_sync.errors import DamagedError
from tune_sync.homes.commit import Committer
from tune_sync.layout import manifest_key
from tune_sync.testing.crash_store import CrashStore


@pytest.fixture
def disk() -> CrashStore:
    return CrashStore()


@pytest.fixture
def ledger(disk: CrashStore) -> Ledger:
    ledger = Ledger()
    run = Run(disk, ledger)
    run.publish(C0, ONE)
    run.state(C0)
    check_recovered(_recovered(disk), ledger, process_only=True)
    return ledger


def _recovered(disk: CrashStore) -> CrashStore:
    Committer(disk).recover()
    return disk


def test_one_changed_byte(disk: CrashStore, ledger: Ledger) -> None:
    disk.write_at(f"{C0}/meta/deep/more", 1, b"x")
    with pytest.raises(ViolatedError, match="WHOLE"):
        check_at_once(disk, ledger)
    ledger.wholes[C0].append({**ledger.wholes[C0][0], "meta/deep/more": b"mxre"})
    with pytest.raises(ViolatedError, match=r"MANIFEST.*meta/deep/more"):
        check_at_once(disk, ledger)


@pytest.mark.parametrize("lost", ["model.bin", "empty", "meta/config.json"])
def test_a_lost_file(disk: CrashStore, ledger: Ledger, lost: str) -> None:
    disk.remove(f"{C0}/{lost}")
    with pytest.raises(ViolatedError, match="WHOLE"):
        check_at_once(disk, ledger)


def test_a_file_or_directory_too_many(disk: CrashStore, ledger: Ledger) -> None:
    disk.make_dir(f"{C0}/one more")
    with pytest.raises(ViolatedError, match="WHOLE"):
        check_at_once(disk, ledger)


def test_a_lost_checkpoint(disk: CrashStore, ledger: Ledger) -> None:
    disk.rename(C0, "elsewhere")
    with pytest.raises(ViolatedError, match="STATE"):
        check_at_once(disk, ledger)
    disk.remove(STATE_KEY)
    with pytest.raises(ViolatedError, match="STATE"):
        check_at_once(disk, ledger)


def test_a_lost_manifest(disk: CrashStore, ledger: Ledger) -> None:
    disk.remove(manifest_key(C0))
    with pytest.raises(ViolatedError, match="RECORDED"):
        check_recovered(_recovered(disk), ledger, process_only=True)


def test_a_damaged_manifest_is_refused(disk: CrashStore, ledger: Ledger) -> None:
    disk.write_at(manifest_key(C0), 3, b"\0\0\0")
    with pytest.raises(DamagedError, match=r"manifests/.*checkpoint_000000\.json"):
        Committer(disk).manifest(C0)
    with pytest.raises(ViolatedError, match="MANIFEST"):
        check_at_once(disk, ledger)
