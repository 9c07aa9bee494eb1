"""What is no file, or no directory, in the place of one of ours is named, and never waited for."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.staged import placed, sealed
from tune_sync import cleanup, status
from tune_sync.errors import ConfigError, DamagedError, PathRefusedError
from tune_sync.homes import kinds
from tune_sync.homes.commit import Committer
from tune_sync.homes.lease import Lease, read_holder
from tune_sync.homes.store import LocalStore
from tune_sync.layout import (
    FORMAT_KEY,
    INCOMING_DIR,
    INTERNAL_DIR,
    LEASE_KEY,
    MANIFESTS_DIR,
    REPORTED_DIR,
    STAGING_DIR,
    TRASH_DIR,
    manifest_key,
)
from tune_sync.run import Run

TIMEOUT_S = 20.0
CHECKPOINT = "trial/checkpoint_000000"
LOCK_KEY = f"{INTERNAL_DIR}/lease.lock"
DIRECTORIES = (STAGING_DIR, INCOMING_DIR, REPORTED_DIR)


def a_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # its name may be long elsewhere
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


MAKES: dict[str, Callable[[Path], None]] = {
    "a FIFO": os.mkfifo,
    "a directory": Path.mkdir,
    "a socket": a_socket,
    "a file": Path.touch,
    "a link": lambda path: path.symlink_to(path.with_name("empty")),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a circle": lambda path: path.symlink_to(path),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An experiment with a checkpoint; its run has ended."""
    run = Run.open(tmp_path / "exp", "error", TIMEOUT_S, 1)
    run.publisher.record_later(placed(run.home.committer, {"a": b"1"}, CHECKPOINT))
    (tmp_path / "exp" / "experiment_state-2026.json").write_text('{"trial_data": []}')
    run.flush(TIMEOUT_S)
    run.close()
    return tmp_path / "exp"


def put(path: Path, kind: str) -> None:
    """Have that there, instead of what may be."""
    if os.path.lexists(path):
        path.rename(path.with_name(f"{path.name}.before"))
    path.with_name("empty").mkdir(exist_ok=True)  # for a link
    MAKES[kind](path)


def outcome(call: Callable[[], object]) -> object:
    """What a call returned or raised. It may not hang."""
    found = list[object]()

    def work() -> None:
        try:
            found.append(call())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(TIMEOUT_S)
    assert found, "it waits for the other end"
    return found[0]


@pytest.mark.parametrize("kind", ["a FIFO", "a directory", "a socket", "a device"])
@pytest.mark.parametrize("key", [LEASE_KEY, FORMAT_KEY, LOCK_KEY])
def test_what_is_no_file_is_named(root: Path, key: str, kind: str) -> None:
    put(root / key, kind)
    is_lock = key == LOCK_KEY  # which `status` does not look at
    for look in (cleanup,) if is_lock else (cleanup, status):
        error = outcome(lambda look=look: look(root))  # type: ignore[misc]
        assert isinstance(error, OSError)
        named = "a link" if kind == "a device" else kind
        assert f"] {named} is where a file belongs; move it away" in str(error)
        assert str(error).endswith(f"{str(root / key)!r}")
    (root / key).rmdir() if kind == "a directory" else (root / key).unlink()
    if not is_lock and key == FORMAT_KEY:
        (root / key).touch()
    cleanup(root)
    assert status(root).stored_count == 1


@pytest.mark.parametrize("key", [LEASE_KEY, FORMAT_KEY, INTERNAL_DIR, STAGING_DIR, TRASH_DIR])
def test_links_in_a_circle_are_named(root: Path, key: str) -> None:
    put(root / key, "a circle")
    for look in (cleanup,) if key in (STAGING_DIR, TRASH_DIR) else (cleanup, status):
        with pytest.raises(OSError, match=rf"in a circle.*remove the link.*'{root / key}'"):
            look(root)


@pytest.mark.parametrize("target", ["outside", ".tune_sync/other", ".tune_sync/lease.lock"])
def test_the_lock_of_a_lease_is_no_link(root: Path, tmp_path: Path, target: str) -> None:
    (root / LOCK_KEY).unlink()
    (root / LOCK_KEY).symlink_to(tmp_path / "outside" if target == "outside" else root / target)
    with pytest.raises(OSError, match=rf"a link is where a file belongs; .*'{root / LOCK_KEY}'"):
        Lease(root, "me").acquire()
    assert not (tmp_path / "outside").exists()
    assert not (root / ".tune_sync" / "other").exists()
    assert read_holder(root / LEASE_KEY) is None


@pytest.mark.parametrize("kind", ["a FIFO", "a socket", "a file", "a link"])
@pytest.mark.parametrize("key", DIRECTORIES)
def test_what_is_no_directory_goes_with_what_was_left(root: Path, key: str, kind: str) -> None:
    put(root / key, kind)
    assert outcome(lambda: cleanup(root).dropped) == ()
    assert not os.path.lexists(root / key)
    assert status(root).stored_count == 1


@pytest.mark.parametrize("kind", ["a FIFO", "a socket", "a file", "a link"])
def test_trash_that_is_no_directory_is_named(root: Path, kind: str) -> None:
    put(root / TRASH_DIR, kind)
    error = outcome(lambda: cleanup(root))
    assert isinstance(error, NotADirectoryError)
    assert f"{kind} is where a directory belongs; move it away" in str(error)
    assert repr(str(root / TRASH_DIR)) in str(error)
    (root / TRASH_DIR).unlink()
    cleanup(root)


@pytest.mark.parametrize("target", ["", "trial", INTERNAL_DIR, MANIFESTS_DIR])
def test_trash_that_is_a_link_takes_nothing_else_away(root: Path, target: str) -> None:
    sealed(Committer(LocalStore(root)), {"a": b"2"}, "trial/checkpoint_000001")
    (root / TRASH_DIR).symlink_to(root / target)
    with pytest.raises(PathRefusedError, match=f"{root / TRASH_DIR}/.* through a link; remove"):
        cleanup(root)
    (root / TRASH_DIR).unlink()
    assert cleanup(root).forgotten == ()
    assert (root / CHECKPOINT / "a").read_bytes() == b"1"
    assert status(root).stored_count == 1


@pytest.mark.parametrize("kind", ["a FIFO", "a file", "a circle"])
def test_what_is_in_the_way_of_a_directory_is_named(tmp_path: Path, kind: str) -> None:
    put(tmp_path / "above", kind)
    for key in ("above", "above/below/it"):
        with pytest.raises(NotADirectoryError, match=f"belongs; move it.*{tmp_path}/above'"):
            LocalStore(tmp_path).make_dir(key)


def test_a_manifest_that_is_no_file_is_named(root: Path) -> None:
    put(root / manifest_key(CHECKPOINT), "a FIFO")
    error = outcome(lambda: LocalStore(root).read(manifest_key(CHECKPOINT)))
    assert isinstance(error, OSError)
    assert "a FIFO is where a file belongs" in str(error)


def test_a_file_that_its_server_takes_back_just_now_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"bytes")
    really = os.open

    def open_(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_NONBLOCK:  # as where a file server has given it to another host
            raise BlockingIOError
        return really(path, flags, mode)

    monkeypatch.setattr(os, "open", open_)
    assert kinds.read_file(tmp_path / "file", 1, 3) == b"yte"


def test_a_file_of_ours_in_the_place_of_our_directory_is_named(root: Path) -> None:
    put(root / INTERNAL_DIR, "a file")
    with pytest.raises(ConfigError, match=f"{root / INTERNAL_DIR} is no directory; remove it"):
        cleanup(root)


@pytest.mark.parametrize("damage", ["not JSON", "lost"])
def test_what_is_said_of_a_damaged_format_mends_it(root: Path, damage: str) -> None:
    mark = root / FORMAT_KEY
    mark.write_text("{") if damage == "not JSON" else mark.unlink()
    for look in (cleanup, status):
        with pytest.raises((DamagedError, ConfigError, FileNotFoundError)) as refusal:
            look(root)
        assert re.search(r"put an empty (file|one) (there|in its place)", str(refusal.value))
        assert FORMAT_KEY in str(refusal.value)
    mark.write_bytes(b"")
    cleanup(root)
    assert status(root).stored_count == 1
    Run.open(root, "resume", TIMEOUT_S, 1).close()
    assert b"format_version" in mark.read_bytes()
