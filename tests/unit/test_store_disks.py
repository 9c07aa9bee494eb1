"""A full disk and a read-only one: real ones, mounted in a mount namespace of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.restored_run import MINE, Experiment
from tune_sync.errors import StoreDeniedError
from tune_sync.homes.store import free_bytes

REPOSITORY = Path(__file__).parents[2]
BEGIN = """
import os, subprocess, sys
from pathlib import Path
from tune_sync.errors import StoreFullError
from tune_sync.homes.store import LocalStore

disk = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], check=True)
store = LocalStore(disk / "experiment")
store.make_dir("d")
store.write_at("d/old", 0, b"o" * 100_000)

def refused(call):
    try:
        call()
    except StoreFullError as error:
        return error
    raise SystemExit("not refused")
"""


def on_a_small_disk(tmp_path: Path, body: str) -> None:
    """Run `body` with `store` on a tmpfs of 1 MiB that nobody else sees."""
    disk = tmp_path / "disk"
    disk.mkdir()
    own = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    command = [*own, sys.executable, "-c", BEGIN + body, str(disk)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(disk.iterdir()), "the mount is seen outside"


def test_a_full_disk_says_what_is_needed_and_keeps_what_is_stored(tmp_path: Path) -> None:
    on_a_small_disk(
        tmp_path,
        """
error = refused(lambda: store.write_at("d/new", 0, bytes(2_000_000)))
text = str(error)
assert str(disk / "experiment/d/new") in text and "need 2000000 bytes" in text, text
assert "free " in text and "make room" in text and error.errno == 28, text
assert store.read("d/old") == b"o" * 100_000
free = int(text.split("free ")[1].split()[0])
assert 0 <= free < 1_000_000, text
store.remove("d/new")
store.write_at("d/new", 0, bytes(500_000))
assert store.info("d/new").size_bytes == 500_000
""",
    )


def test_no_room_for_names_says_so_too(tmp_path: Path) -> None:
    on_a_small_disk(
        tmp_path,
        """
subprocess.run(["mount", "-o", "remount,nr_inodes=6", disk], check=True)
error = refused(lambda: [store.make_dir(f"d/{number}") for number in range(10)])
assert "no space left" in str(error) and "experiment/d/" in str(error), error
assert " bytes and 0 inodes" in str(error), error
error = refused(lambda: [store.write_at(f"d/f{number}", 0, b"x") for number in range(10)])
assert "no space left" in str(error) and " bytes and 0 inodes " in str(error), error
""",
    )


def test_a_read_only_disk_refuses_every_change_and_can_be_read(tmp_path: Path) -> None:
    on_a_small_disk(
        tmp_path,
        """
subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
for call in (
    lambda: store.make_dir("new"),
    lambda: store.write_at("d/new", 0, b"x"),
    lambda: store.write_at("d/old", 0, b"x"),
    lambda: store.rename("d/old", "d/new"),
    lambda: store.link("d/old", "d/new"),
    lambda: store.remove("d/old"),
    lambda: store.remove_tree("d"),
):
    error = refused(call)
    assert "mounted read-only" in str(error) and str(disk) in str(error), error
    assert "mount it for writing, or choose another storage_path" in str(error), error
    assert error.errno == 30 and "bytes" not in str(error), error
assert store.read("d/old") == b"o" * 100_000
""",
    )


def test_a_lease_on_a_read_only_disk_is_refused_with_the_reason_and_given_back_without_an_error(
    tmp_path: Path,
) -> None:
    on_a_small_disk(
        tmp_path,
        """
from tune_sync.homes.lease import Lease
held = Lease(disk / "experiment", "held")
held.acquire()
subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
held.release()
error = refused(Lease(disk / "experiment", "next").acquire)
assert "read-only" in str(error) and "mount it for writing" in str(error), error
subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
later = Lease(disk / "experiment", "next")
later.acquire()  # no need to wait for a run of this process that has ended
later.release()
""",
    )


def test_free_bytes_of_a_path_that_is_not_there_yet(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "not/there") == pytest.approx(free_bytes(tmp_path), rel=0.05)


def test_who_may_not_write_is_told_what_to_do(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    (closed / "to all").mkdir(mode=0)
    body = """
import os, sys
from pathlib import Path
from tune_sync.errors import StoreDeniedError
from tune_sync.homes.sites import LocalSite
from tune_sync.homes.store import LocalStore

if os.getuid() == 0:
    os.setuid(65534)
store = LocalStore(Path(sys.argv[1]))
look = LocalSite(Path(sys.argv[1], "to all", "experiment")).check
for call in (lambda: store.make_dir("d"), lambda: store.write_at("x", 0, b"x"), look):
    try:
        call()
    except StoreDeniedError as error:
        text = str(error)
        assert "let this user read and write" in text, text
        assert sys.argv[1] in text and error.errno == 13, text
    else:
        raise SystemExit("not refused")
"""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", body, str(closed)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def storage_of_nobody() -> Iterator[Path]:
    """A directory that another user reaches, too; pytest's own ones are of one user alone."""
    with tempfile.TemporaryDirectory() as storage:
        yield Path(storage)


@pytest.mark.parametrize(
    "closed",
    [
        ".tune_sync/format.json", ".tune_sync/lease.json", ".tune_sync/lease.lock", ".tune_sync",
        ".tune_sync/staging", f".tune_sync/manifests/{MINE}",
        f".tune_sync/manifests/{MINE}/checkpoint_000001.json", f"{MINE}/checkpoint_000001",
        "experiment_state-1.json",
    ],
)  # fmt: skip
def test_who_may_not_read_what_is_restored_is_told_what_and_what_to_do(
    storage_of_nobody: Path, closed: str
) -> None:
    there = Experiment(storage_of_nobody)
    there.publish(MINE, 0, 1)
    (there.root / ".tune_sync/staging").mkdir(exist_ok=True)
    (there.root / "experiment_state-1.json").write_text('{"trial_data": []}')
    there.run.lease.leave()
    (there.root / closed).chmod(0)
    with as_nobody(storage_of_nobody), pytest.raises(StoreDeniedError) as refused:
        found = Experiment(storage_of_nobody, "resume")
        found.adopt(found.trial(MINE, (0, 1)))
    assert str(there.root / closed) in str(refused.value)
    assert "let this user read and write there" in str(refused.value)


@contextmanager
def as_nobody(storage: Path) -> Iterator[None]:
    """Another user than root, to whom all below `storage` belongs."""
    if os.geteuid() != 0:
        yield
        return
    for path in (storage, *storage.rglob("*")):
        os.chown(path, 65534, 65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_read_only_directory_of_all_nodes_names_its_own_setting(tmp_path: Path) -> None:
    on_a_small_disk(
        tmp_path,
        """
from tune_sync.homes.shared.home import SharedHome
from tune_sync.homes.shared.site import check_abilities
subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
for call in (lambda: SharedHome(disk / "x").make_dir("d"), lambda: check_abilities(disk)):
    assert "choose another upload_dir, or storage_path" in str(refused(call))
""",
    )
