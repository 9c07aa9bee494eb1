"""Copies of what another node has staged: whole or not there, in memory or on the disk."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.clock import Clock
from tests.unit.replica_peer import BODY, Peer
from tests.unit.test_node_sender import FIRST, SECOND, Shaky, report, until
from tune_sync.behind.node_copies import NodeCopies
from tune_sync.behind.node_sender import NodeSender
from tune_sync.behind.replica_message import Message
from tune_sync.behind.replicas import SILENT_S, Room
from tune_sync.behind.replicating import NoPeerError, Replicating
from tune_sync.behind.staged_copy import StagedCopies
from tune_sync.behind.staging_home import StagingHome
from tune_sync.errors import (
    DamagedError,
    PathRefusedError,
    PeerLostError,
    StoreError,
    StoreFullError,
    SyncTimeoutError,
)
from tune_sync.homes.home import Piece
from tune_sync.manifest import Seal
from tune_sync.sending.orders import Orders
from tune_sync.transfer.upload import CheckpointUpload

pytestmark = pytest.mark.in_shared_memory

CONFIRM_TIMEOUT_S = 20.0


@pytest.fixture
def home(tmp_path: Path) -> Shaky:
    return Shaky(tmp_path / "home")


@pytest.fixture
def peer(tmp_path: Path, home: Shaky) -> Iterator[Peer]:
    made = Peer(tmp_path / "peer", home)
    yield made
    made.agent.end()


@pytest.fixture
def writer(tmp_path: Path, home: Shaky) -> Iterator[NodeSender]:
    made = NodeSender(
        tmp_path / "node", lambda: home, 1 << 26, only_expected=True, first_pause_s=0.01
    )
    yield made
    made.end()


class Time(Clock):
    """Goes on when somebody sleeps."""

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def staging(
    tmp_path: Path, home: Shaky, writer: NodeSender, peer: Peer, **more: Any
) -> StagingHome:
    time = Time()
    more = {"timeout_s": 100.0, "clock": time, "sleep": time.sleep} | more
    replicating = Replicating(peer, writer.is_stored, **more)
    return StagingHome(home, tmp_path / "node", writer, "node1", replicating=replicating)


def test_a_report_returns_when_both_nodes_have_it_and_only_one_sends(
    tmp_path: Path, home: Shaky, writer: NodeSender, peer: Peer
) -> None:
    upload = report(staging(tmp_path, home, writer, peer), FIRST, BODY)
    assert upload.reported_as == f"{upload.attempt}@node1@peer"
    assert peer.whole(FIRST) == "memory"
    assert peer.agent.status().held == writer.status().held == [upload.attempt]
    peer.agent.exchange(Orders())
    writer.exchange(Orders(expected=[upload.attempt]))
    until(writer, lambda n: upload.attempt in n.stored)
    assert peer.agent.status() == replace(peer.agent.status(), stored={}, sending=[], left_count=0)
    assert peer.agent.status().replicas_count == 1


def test_the_copy_is_sent_as_what_was_reported_when_its_writers_node_is_gone(
    tmp_path: Path, home: Shaky, writer: NodeSender, peer: Peer
) -> None:
    upload = report(staging(tmp_path, home, writer, peer), FIRST, BODY)
    writer.end()
    peer.agent.exchange(Orders(expected=[upload.attempt], parts={upload.attempt: [upload.attempt]}))
    news = until(peer.agent, lambda n: upload.attempt in n.stored)
    placed = home.committer.place(FIRST, attempts=[news.stored[upload.attempt]])
    assert {f.path for f in placed.manifest.files} == {"a/one", "two"}
    (seal,) = home.root.rglob("seal.json")
    assert json.loads(seal.read_text())["staged_as"] == upload.attempt


def test_why_a_report_has_no_replica_is_told_until_one_has(
    tmp_path: Path, home: Shaky, writer: NodeSender, peer: Peer
) -> None:
    told: list[str] = []
    made = staging(tmp_path, home, writer, peer, may_wait=False, tell=told.append)
    report_here_alone(made, peer)
    assert told == [f"{FIRST}: [Errno 28] not now"]
    for checkpoint in (SECOND, FIRST):
        report(made, checkpoint, BODY)
        assert told[1:] == [""], "each is told once"


def confirmed(copies: StagedCopies, upload: CheckpointUpload) -> Seal:
    """The seal, once its digests are known."""
    end_s = time.monotonic() + CONFIRM_TIMEOUT_S
    while (seal := copies.seal(FIRST, upload.attempt)) is None or not seal.is_confirmed:
        assert time.monotonic() < end_s, "it is not confirmed"
        time.sleep(0.01)
    return seal


def report_here_alone(made: StagingHome, peer: Peer) -> tuple[CheckpointUpload, StagedCopies]:
    """The peer takes no copy of it; returns what is staged here."""
    peer.errors = [StoreFullError(28, "not now")]
    return report(made, FIRST, BODY), StagedCopies(made._disk.root)


def test_without_a_driver_the_node_of_the_copy_sends_it(
    tmp_path: Path, home: Shaky, writer: NodeSender, peer: Peer
) -> None:
    upload = report(staging(tmp_path, home, writer, peer), FIRST, BODY)
    peer.agent.go_on_alone()
    until(peer.agent, lambda n: upload.attempt in n.stored)


def test_a_copy_that_is_cut_off_counts_for_nothing_and_is_begun_again(
    tmp_path: Path, home: Shaky, writer: NodeSender, peer: Peer
) -> None:
    made = staging(tmp_path, home, writer, peer, may_wait=False)
    upload, copies = report_here_alone(made, peer)
    seal = copies.seal(FIRST, upload.attempt)
    assert seal is not None

    class Cut(BaseException): ...

    asked: list[int] = []

    def go_on(size_bytes: int) -> bool:
        asked.append(size_bytes)
        if len(asked) > 3:
            peer.replicas.discard = lambda *args: None  # type: ignore[method-assign]  # no power
            raise Cut
        return True

    with pytest.raises(Cut):
        peer.send(copies, FIRST, seal, "memory", go_on)
    del peer.replicas.discard
    assert list(peer.memory.rglob("one")), "nothing arrived"
    assert peer.whole(FIRST) == ""
    peer.agent.wake()
    assert peer.agent.status().held == []
    peer.send(copies, FIRST, seal, "memory")
    assert peer.whole(FIRST) == "memory"


def test_a_copy_whose_sender_is_gone_is_dropped_with_what_it_took(
    tmp_path: Path, peer: Peer
) -> None:
    name = "0" * 32
    peer.replicas.begin(FIRST, name, {"two": 1000}, "memory")
    key = f".tune_sync/staging/{FIRST}/{name}/data/two"
    peer.replicas.write([Piece(key, 0, 4)], memoryview(b"half"), 0)
    peer.clock.now_s += SILENT_S - 1
    assert peer.replicas.sweep() == []
    peer.clock.now_s += 2
    assert peer.replicas.sweep() == [FIRST]
    assert not any(path.is_file() for path in peer.memory.rglob("*"))
    with pytest.raises(FileNotFoundError, match="begin again"):
        peer.replicas.write([Piece(key, 0, 4)], memoryview(b"late"), 4)


def test_what_finds_no_room_in_memory_goes_to_the_disk(
    tmp_path: Path, home: Shaky, writer: NodeSender
) -> None:
    peer = Peer(tmp_path / "peer", home, limit_bytes=5_000_000)
    made = staging(tmp_path, home, writer, peer)
    for checkpoint in (FIRST, SECOND):
        report(made, checkpoint, BODY)
    assert [peer.whole(c) for c in (FIRST, SECOND)] == ["memory", "disk"]
    peer.agent.end()


def test_with_no_room_anywhere_a_report_waits_for_the_destination(
    tmp_path: Path, home: Shaky, writer: NodeSender, peer: Peer, caplog: pytest.LogCaptureFixture
) -> None:
    peer.errors = [StoreFullError(28, "its disk is full")] * 1000
    made = staging(tmp_path, home, writer, peer, sleep=lambda seconds: time.sleep(0.01))
    upload = report(made, FIRST, BODY)
    assert upload.reported_as == f"{upload.attempt}@node1"
    assert upload.attempt in writer.status().stored
    (record,) = [r for r in caplog.records if "is not replicated" in r.message]
    assert "its disk is full" in record.message


@pytest.mark.parametrize("error", [StoreFullError(28, "full"), NoPeerError("no other node")])
def test_want_of_room_fails_no_report(
    tmp_path: Path, home: Shaky, writer: NodeSender, peer: Peer, error: Exception,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    home.is_up = False
    peer.errors = [error] * 1000
    report(staging(tmp_path, home, writer, peer), FIRST, BODY)
    assert "on its own node only" in caplog.text
    report(staging(tmp_path, home, writer, peer, may_wait=False, timeout_s=1e9), SECOND, BODY)


def test_a_node_that_does_not_answer_is_asked_again_and_then_the_report_fails(
    tmp_path: Path, home: Shaky, writer: NodeSender, peer: Peer
) -> None:
    home.is_up = False
    peer.errors = [PeerLostError("cut")] * 5
    upload = report(staging(tmp_path, home, writer, peer), FIRST, BODY)
    assert upload.reported_as.endswith("@peer")
    peer.errors = [PeerLostError("cut")] * 1000
    with pytest.raises(SyncTimeoutError, match="neither another node nor its destination"):
        report(staging(tmp_path, home, writer, peer), SECOND, BODY)
    peer.errors = [PeerLostError("cut")] * 1000
    report(staging(tmp_path, home, writer, peer, fails=False), SECOND, BODY)


def test_damaged_bytes_are_no_replica(
    tmp_path: Path, home: Shaky, writer: NodeSender, peer: Peer
) -> None:
    made = staging(tmp_path, home, writer, peer, may_wait=False)
    upload, copies = report_here_alone(made, peer)
    seal = confirmed(copies, upload)
    (file,) = (tmp_path / "node").rglob("data/two")
    file.write_bytes(b"y" * len(BODY))
    with pytest.raises(DamagedError):
        peer.send(copies, FIRST, seal, "memory")
    assert peer.whole(FIRST) == ""
    assert list(peer.memory.rglob("seal.json")) == []


def test_who_reads_elsewhere_reads_the_copy_until_it_is_published(
    tmp_path: Path, home: Shaky, writer: NodeSender, peer: Peer
) -> None:
    upload = report(staging(tmp_path, home, writer, peer), FIRST, BODY)
    third = NodeSender(tmp_path / "third", lambda: home, 1 << 26)
    far = NodeCopies(peer.memory, peer.disk)
    reader = StagingHome(home, tmp_path / "third", third, "node3", far=far, timeout_s=20.0)
    found = {i.key: i.size_bytes for i in reader.list(FIRST, True) if not i.is_dir}
    assert found == {f"{FIRST}/a/one": len(BODY), f"{FIRST}/two": len(BODY)}
    assert reader.info(f".tune_sync/manifests/{FIRST}.json") is None
    assert reader.read(f"{FIRST}/two", 1, 2) == BODY[1:3]
    assert reader.read_many([f"{FIRST}/two"]) == [BODY]
    peer.agent.exchange(Orders(expected=[upload.attempt]))
    news = until(peer.agent, lambda n: upload.attempt in n.stored)
    placed = home.committer.place(FIRST, attempts=[news.stored[upload.attempt]])
    home.committer.record(placed.manifest)
    peer.agent.exchange(Orders(dropped=[upload.attempt]))
    assert peer.whole(FIRST) == ""
    assert reader.read(f"{FIRST}/two", 0, len(BODY)) == BODY
    assert reader.info(f".tune_sync/manifests/{FIRST}.json") is not None
    third.end()


@pytest.mark.parametrize("path", ["../../../evil", "/tmp/evil", "a/../../data/evil", "evil\0"])
@pytest.mark.parametrize("room", ["memory", "disk"])
def test_a_copy_with_a_file_elsewhere_is_refused_before_it_begins(
    peer: Peer, room: Room, path: str
) -> None:
    with pytest.raises(PathRefusedError):
        peer.replicas.begin(FIRST, "0" * 32, {"one": 1, path: 4}, room)
    assert not [*peer.memory.rglob("data"), *peer.disk.rglob("data")]


def test_of_an_earlier_try_nothing_stays(peer: Peer) -> None:
    name = "0" * 32
    key = f".tune_sync/staging/{FIRST}/{name}/data/old"
    rooms: list[Room] = ["memory", "memory", "disk"]
    for room in rooms:
        peer.replicas.begin(FIRST, name, {"two": 1000}, room)
        assert not [*peer.memory.rglob("old"), *peer.disk.rglob("old")]
        peer.replicas.write([Piece(key, 0, 3)], memoryview(b"old"))
    assert not list(peer.memory.rglob("old"))


@pytest.mark.parametrize("room", ["memory", "disk"])
def test_a_copy_whose_answer_was_lost_is_sent_on_once_it_came_again(
    tmp_path: Path, home: Shaky, writer: NodeSender, peer: Peer, room: Room
) -> None:
    made = staging(tmp_path, home, writer, peer)
    upload = report(made, FIRST, BODY)  # whole there, and known to who sends
    peer.replicas.discard(FIRST, upload.attempt)
    peer.agent.exchange(Orders())
    copies = StagedCopies(tmp_path / "node")
    seal = copies.seal(FIRST, upload.attempt)
    assert seal is not None
    peer.send(copies, FIRST, seal, room)
    peer.agent.wake()
    assert peer.whole(FIRST) == room
    news = peer.agent.exchange(Orders(expected=[upload.attempt]))
    assert (news.failed, news.missing) == ({}, [])
    until(peer.agent, lambda n: upload.attempt in n.stored)


def test_a_published_copy_is_not_sent_again_when_the_driver_has_died(
    tmp_path: Path, home: Shaky, writer: NodeSender, peer: Peer
) -> None:
    upload = report(staging(tmp_path, home, writer, peer), FIRST, BODY)
    peer.agent.exchange(Orders(published=[upload.attempt]))
    again = NodeSender(peer.disk, lambda: home, 1 << 26, memory=peer.memory, only_expected=True)
    for agent in (peer.agent, again):
        agent.go_on_alone()
        news = agent.status()
        assert (news.held, news.left_count, agent.is_idle) == ([upload.attempt], 0, True)
    again.end()


def test_what_is_begun_again_is_not_built_on_what_is_in_use(
    tmp_path: Path, home: Shaky, writer: NodeSender, peer: Peer
) -> None:
    upload = report(staging(tmp_path, home, writer, peer), FIRST, BODY)
    with StagedCopies(peer.memory).held(FIRST, upload.attempt) as is_held:
        assert is_held
        with pytest.raises(StoreError, match="tried again"):
            peer.replicas.begin(FIRST, upload.attempt, {}, "disk")
    assert (peer.whole(FIRST), sum(peer.slept) > 0.5) == ("memory", True)
    assert peer.agent.exchange(Orders(expected=[upload.attempt])).missing == []
    until(peer.agent, lambda n: upload.attempt in n.stored)
    peer.replicas.begin(FIRST, upload.attempt, {}, "disk")
    assert (peer.whole(FIRST), peer.agent.status().held) == ("", [])


def test_keys_stay_in_staging(peer: Peer) -> None:
    name = "0" * 32
    with pytest.raises(PathRefusedError):
        peer.replicas.begin("../t/checkpoint_000000", name, {}, "memory")
    with pytest.raises(PathRefusedError):
        peer.replicas.begin(FIRST, "../x", {}, "memory")
    peer.replicas.begin(FIRST, name, {}, "memory")
    for inner in ("../seal.json", "../../../../../x"):
        key = f".tune_sync/staging/{FIRST}/{name}/data/{inner}"
        with pytest.raises(PathRefusedError):
            peer.replicas.write([Piece(key, 0, 1)], memoryview(b"x"))


@pytest.mark.parametrize(
    "body",
    [
        b"\x80\x04.", b"[]", b"{}", b'{"pieces": [], "at_bytes": null}',
        b'{"pieces": [["k", 0, 11]], "at_bytes": null}',
        b'{"pieces": [["k", -1, 1]], "at_bytes": null}',
        b'{"pieces": [["k", 0, 1]], "at_bytes": -1}',
        b'{"pieces": [["k", 0, 1], ["l", 1, 1]], "at_bytes": 0}',
    ],
)  # fmt: skip
def test_a_message_that_does_not_fit_its_bytes_is_refused(body: bytes) -> None:
    with pytest.raises(DamagedError):
        Message.from_json(body, 10)


def test_messages_arrive_as_they_were_sent() -> None:
    for message in (
        Message.of_chunk("k", 1 << 40, 10), Message.of_batch([Piece("k", 0, 4), Piece("l", 4, 6)])
    ):  # fmt: skip
        assert Message.from_json(message.to_json(), 10) == message
