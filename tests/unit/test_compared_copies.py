"""A whole copy on a node counts only if it is of what is published, once anything is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.test_late_errors import Connected
from tests.unit.test_node_sender import (
    FIRST,
    SECOND,
    TIMEOUT_S,
    Shaky,
    home,
    make,
    report,
    staging,
    until,
)
from tune_sync.behind.compared_copies import ComparedCopies
from tune_sync.behind.node_copies import NodeCopies
from tune_sync.behind.node_sender import NodeSender
from tune_sync.behind.staging_home import StagingHome
from tune_sync.errors import ImmutableError, StoreUnreachableError, SyncTimeoutError
from tune_sync.filesystem import SyncHandler
from tune_sync.homes.store import Info
from tune_sync.layout import manifest_key
from tune_sync.run_filesystem import RunFileSystem
from tune_sync.sending.orders import Orders
from tune_sync.spec import Options, Spec

__all__ = ["home", "make"]  # fixtures


def read(local: StagingHome) -> list[bytes]:
    """What all ways to read `FIRST` give."""
    assert local.info(FIRST) is not None
    found = local.info(f"{FIRST}/two")
    assert found is not None
    one = local.read(f"{FIRST}/two", 0, found.size_bytes)
    many = local.read_many([f"{FIRST}/a/one"])
    listed = {i.key: i.size_bytes for i in local.list(FIRST, True)}
    assert listed[f"{FIRST}/two"] == found.size_bytes
    return [bytes(one), *map(bytes, many)]


def test_a_try_that_nobody_heard_of_is_not_read_once_another_one_is_published(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    local = staging(tmp_path, home, make())
    report(local, FIRST, b"first try, killed")
    retry = report(home, FIRST, b"second")
    assert read(local) == [b"first try, killed"] * 2  # nothing is known of another one
    home.publish(FIRST, False, [retry.attempt])
    assert read(local) == [b"second"] * 2
    assert local.info(manifest_key(FIRST)) is not None
    with local.held(FIRST) as directory:
        assert directory is None


@pytest.mark.parametrize("starts_anew", [False, True])
def test_of_what_the_node_knows_to_be_published_the_destination_is_not_asked(
    tmp_path: Path, make: Callable[..., NodeSender], starts_anew: bool
) -> None:
    """So a trial that starts again waits for no answer, whether there would be one or not."""
    silent, sender = Silent(tmp_path / "home"), make()
    upload = report(staging(tmp_path, silent, sender), FIRST)
    news = until(sender, lambda n: upload.attempt in n.stored)
    silent.publish(FIRST, False, [news.stored[upload.attempt]])
    sender.exchange(Orders(published=[upload.attempt]))
    if starts_anew:  # its agent; it has not heard the driver yet
        sender.end(leave=True)
        sender = make()
        assert upload.attempt in sender.status().stored
    silent.is_up = False
    local = staging(tmp_path, silent, sender)
    with local.held(FIRST) as directory:
        assert directory is not None
        assert (directory / "two").read_bytes() == b"body"
    assert read(local) == [b"body"] * 2
    assert silent.asked_count == 0


def test_what_is_placed_and_not_recorded_yet_is_not_hidden_by_another_try(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    local = staging(tmp_path, home, make())
    report(local, FIRST, b"first try, killed")
    retry = report(home, FIRST, b"second")
    placed = home.committer.place(FIRST, attempts=[retry.attempt])
    assert read(local) == [b"second"] * 2
    home.committer.record(placed.manifest)
    assert read(local) == [b"second"] * 2


def test_the_copy_of_what_is_published_is_read_here(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    sender = make()
    local = staging(tmp_path, home, sender)
    upload = report(local, FIRST)
    news = until(sender, lambda n: upload.attempt in n.stored)
    home.publish(FIRST, False, [news.stored[upload.attempt]])
    with local.held(FIRST) as directory:
        assert directory is not None
        assert directory.is_relative_to(tmp_path / "node")
    (home.root / FIRST / "two").unlink()
    assert read(local) == [b"body"] * 2
    assert local.info(manifest_key(FIRST)) is not None  # whoever writes into it is told


class Silent(Shaky):
    """Does not answer who asks for what is published."""

    asked_count = 0

    def info(self, key: str) -> Info | None:
        if not self.is_up:
            self.asked_count += 1
            raise StoreUnreachableError("it does not answer")
        return super().info(key)


def test_while_the_destination_does_not_answer_what_is_here_is_read(
    tmp_path: Path, make: Callable[..., NodeSender]
) -> None:
    silent = Silent(tmp_path / "silent")
    local = staging(tmp_path, silent, make(only_wanted=True))
    report(local, FIRST)
    silent.is_up = False
    assert read(local) == [b"body"] * 2
    assert local.info(manifest_key(FIRST)) is None
    assert silent.asked_count == 1  # each time takes as long as it is patient


class Hanging(Shaky):
    """Answers later."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.answers = threading.Event()

    def info(self, key: str) -> Info | None:
        assert self.answers.wait(TIMEOUT_S)
        return super().info(key)


def test_a_destination_that_hangs_is_not_waited_for(
    tmp_path: Path, make: Callable[..., NodeSender]
) -> None:
    hanging = Hanging(tmp_path / "hanging")
    report(staging(tmp_path, hanging, make(only_wanted=True)), FIRST)
    compared = ComparedCopies(NodeCopies(tmp_path / "node"), hanging, timeout_s=0.1)
    assert compared.whole(FIRST) is not None
    assert compared.hides_manifest(FIRST)
    hanging.answers.set()


@pytest.mark.parametrize("is_silent", [True, False])
def test_while_the_destination_does_not_answer_the_home_nodes_copy_is_read(
    tmp_path: Path, make: Callable[..., NodeSender], is_silent: bool
) -> None:
    """So a trial goes on elsewhere while the destination is out."""
    home: Hanging | Silent = (Hanging if is_silent else Silent)(tmp_path / "out")
    report(staging(tmp_path, home, make(only_wanted=True)), FIRST)
    home.is_up = False
    far, elsewhere = NodeCopies(tmp_path / "node"), tmp_path / "elsewhere"
    reader = StagingHome(home, elsewhere, make(), "node2", far=far, timeout_s=60.0)
    reader._here._timeout_s = 0.1
    assert read(reader) == [b"body"] * 2
    with reader.held(FIRST) as directory:
        assert directory is None
    if isinstance(home, Hanging):
        threading.Timer(0.5, home.answers.set).start()
        reader._timeout_s = 0.0
        with pytest.raises(SyncTimeoutError):  # which was waited for: it is not there
            reader.info(SECOND)
        assert home.answers.is_set()
        return
    with pytest.raises(StoreUnreachableError):  # no node has it: as without a home node
        reader.info(SECOND)


def test_who_has_begun_to_read_one_try_gets_no_files_of_another(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    local = staging(tmp_path, home, make())
    report(local, FIRST, b"first try, killed")
    retry = report(home, FIRST, b"second")
    assert local.list(FIRST, True)
    home.publish(FIRST, False, [retry.attempt])
    found = local.info(f"{FIRST}/two")
    assert found is not None
    assert found.size_bytes == len(b"first try, killed")
    assert local.read(f"{FIRST}/two", 0, 100) == b"first try, killed"
    assert local.list(FIRST, True)  # somebody else begins
    assert local.read(f"{FIRST}/two", 0, 100) == b"second"


def test_who_writes_into_what_is_published_is_told_also_where_its_copy_is_on_the_node(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    sender = make()
    connected = Connected(staging(tmp_path, home, sender))  # type: ignore[arg-type]
    spec = Spec("key", str(tmp_path), "home", "", None, Options(wait_for="staged"))
    filesystem, at = RunFileSystem(SyncHandler(spec, connected)), f"{tmp_path}/home/{FIRST}"
    filesystem.create_dir(at)
    with filesystem.open_output_stream(f"{at}/one") as stream:
        stream.write(b"one")
    filesystem.handler.barrier(at)
    ((_, reported, _),) = filesystem.handler.uploads.reported()
    attempt = reported.partition("@")[0]
    news = until(sender, lambda n: attempt in n.stored)
    home.publish(FIRST, False, [news.stored[attempt]])
    with pytest.raises(ImmutableError, match="never changes"):
        filesystem.open_output_stream(f"{at}/two")
