"""One directory under two paths is seen as one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.weakfs import Weakness, weak_mount
from tune_sync.errors import PathRefusedError
from tune_sync.filesystem import SyncHandler
from tune_sync.homes.lease import Lease
from tune_sync.homes.shared.home import SharedHome
from tune_sync.run_filesystem import RunFileSystem
from tune_sync.same import is_same_directory
from tune_sync.spec import Address, Options, Spec
from tune_sync.syncers.shared_directory import SharedDirectorySyncer


class OnThisNode:
    """A worker's way to the directory."""

    def __init__(self, home: SharedHome) -> None:
        self._home = home

    def home(self, spec: Spec) -> SharedHome:
        return self._home

    def ranks_count(self) -> int:
        return 1

    def is_worker(self) -> bool:
        return True

    def unstored(self, spec: Spec) -> dict[str, str]:
        return {}

    def tell_unstored(self, spec: Spec, key: str, reason: str | None) -> None:
        raise AssertionError(f"{key} is not stored: {reason}")


def spec_of(home: SharedHome) -> Spec:
    address = Address("", "agent")
    root = home.root
    return Spec("key", str(root.parent), root.name, "me", address, Options(shared=True))


def write(filesystem: RunFileSystem, path: str, data: bytes) -> None:
    with filesystem.open_output_stream(path) as out:
        out.write(data)


@pytest.fixture
def places(tmp_path: Path) -> Iterator[dict[str, Path]]:
    """The directory itself, a link to it, a second mount of it, another one."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real/log.txt").write_bytes(os.urandom(1 << 16))
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "other").mkdir()
    names = {name: tmp_path / name for name in ("real", "link", "other")}
    with weak_mount(tmp_path / "real", tmp_path / "mount", Weakness()) as mount:
        yield {**names, "mount": mount}


@pytest.mark.parametrize(("name", "same"), [("link", True), ("mount", True), ("other", False)])
def test_links_and_mounts_lead_to_the_same_directory(
    places: dict[str, Path], name: str, same: bool
) -> None:
    assert is_same_directory(places["real"], places[name]) is same
    assert is_same_directory(places[name], places["real"]) is same
    assert os.listdir(places["real"]) == ["log.txt"]


@pytest.mark.parametrize("name", ["real", "link", "mount"])
def test_a_directory_is_not_copied_onto_itself(places: dict[str, Path], name: str) -> None:
    before = (places["real"] / "log.txt").stat()
    syncer = SharedDirectorySyncer()
    for copy in (syncer.sync_up, syncer.sync_down):
        assert copy(str(places["real"]), str(places[name]))
        syncer.wait()
    after = (places["real"] / "log.txt").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_a_copy_into_itself_is_refused(places: dict[str, Path]) -> None:
    for name in ("real", "link"):
        with pytest.raises(PathRefusedError, match="inside of"):
            SharedDirectorySyncer().sync_up(str(places["real"]), str(places[name] / "sub/dir"))
    assert os.listdir(places["real"]) == ["log.txt"]


@pytest.mark.parametrize("name", ["real", "link", "mount"])
def test_a_trial_that_works_in_its_own_results_is_known(
    places: dict[str, Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = Lease(places["real"] / "exp", "me")
    lease.acquire()
    (places["real"] / "exp/trial").mkdir()
    home = SharedHome(places["real"] / "exp", "me", where="node w1")
    monkeypatch.chdir(places[name] / "exp/trial")
    assert home.is_working_directory("trial")
    assert not home.is_working_directory("another")
    filesystem = RunFileSystem(SyncHandler(spec_of(home), OnThisNode(home)))
    Path("log.txt").write_text("mine")
    inode = Path("log.txt").stat().st_ino
    write(filesystem, str(home.root / "trial/log.txt"), b"again")
    assert (Path("log.txt").read_text(), Path("log.txt").stat().st_ino) == ("mine", inode)
    monkeypatch.chdir(places["other"])
    write(filesystem, str(home.root / "trial/log.txt"), b"again")
    assert (home.root / "trial/log.txt").read_text() == "again"
    assert not home.is_working_directory("trial")
    lease.release()
