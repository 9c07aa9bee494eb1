"""What is stored is brought to a node once for all who read it there; nobody depends on that."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from tests.unit.clock import Clock
from tests.unit.replica_peer import Direct
from tests.unit.test_node_sender import FIRST, SECOND, report
from tune_sync import layout
from tune_sync.behind.memory_home import Memory
from tune_sync.behind.node_copies import CopyHere, NodeCopies
from tune_sync.behind.node_disk import NodeDisk
from tune_sync.behind.replicas import SILENT_S, Replicas
from tune_sync.behind.staged_copy import StagedCopies
from tune_sync.behind.staged_send import send_attempt
from tune_sync.errors import StoreUnreachableError
from tune_sync.fastpath.budget import Budget
from tune_sync.homes.home import Home, LocalHome, Piece
from tune_sync.homes.store import Info
from tune_sync.reading.brought import IDLE_S, SAY_S, STEP_BYTES, BroughtCopies, Source
from tune_sync.reading.holders import Holders

pytestmark = pytest.mark.in_shared_memory

BODY = bytes(range(256)) * 8192  # 2 MiB: not among the small files that come together
READERS_COUNT = 8
MEMORY_BYTES = 64 << 20
THIRD = "t/checkpoint_000007"


class Store(LocalHome):
    """A destination that counts what is read of files."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.read_bytes = 0
        self.flips = False

    def read(self, key: str, offset_bytes: int, length_bytes: int) -> bytes:
        data = super().read(key, offset_bytes, length_bytes)
        if "/two" in key:
            self.read_bytes += len(data)
            return b"?" + data[1:] if self.flips else data
        return data


class Node:
    """A node's copies for readers, and what other nodes see of them."""

    def __init__(self, base: Path, name: str, store: Store, nodes: dict[str, Node]) -> None:
        shm = base / name
        shm.mkdir()
        self.name, self.nodes, self.clock = name, nodes, Clock()
        self.holders = next(iter(nodes.values())).holders if nodes else Holders()
        self.budget = Budget(shm, MEMORY_BYTES)
        memory = Memory(self.budget.folder / "run" / name, self.budget, 1)
        nodes[name] = self
        self.is_up = True
        self.replicas = NodeCopies(base / "replicas")
        self.brought = BroughtCopies(
            memory, lambda: store, lambda trial: False, self, clock=self.clock
        )
        self.taking = Replicas(
            base / "staged" / name, None, lambda trial: False, lambda *_: True, lambda: True,
            for_readers=self.brought.home, clock=self.clock,
        )  # fmt: skip
        self.link_breaks = False

    def holder(self, checkpoint: str, gone: str = "") -> str:
        return self.holders.join(checkpoint, self.name, gone)

    def copy_of(self, node: str, checkpoint: str) -> Source:
        return Far(self.nodes[node], checkpoint)

    def take_replica(self, checkpoint: str, have: str) -> bool:
        found = self.replicas.whole(checkpoint)
        seal = found.copies.seal(checkpoint, found.attempt) if found is not None else None
        if found is None or seal is None:
            return False
        if found.attempt == have:
            return True
        there = replace(seal, attempt=uuid.uuid4().hex)
        home = cast(Home, Direct(self.taking, there, "readers"))
        send_attempt(
            found.copies, checkpoint, seal, home,
            lambda size_bytes: not (size_bytes and self.link_breaks),
        )  # fmt: skip
        return True

    def whole(self, checkpoint: str = FIRST) -> CopyHere | None:
        return self.brought.copies.whole(checkpoint)


class Far:
    """A copy on another node."""

    def __init__(self, node: Node, checkpoint: str) -> None:
        self._node, self._checkpoint = node, checkpoint

    def _copy(self) -> CopyHere:
        if not self._node.is_up:
            raise FileNotFoundError("it is down")
        return self._node.brought.wait(self._checkpoint)

    def list(self, key: str, recursive: bool) -> list[Info]:
        return self._copy().list(key, recursive)

    def read(self, key: str, offset_bytes: int, length_bytes: int) -> bytes:
        return self._copy().read(key, offset_bytes, length_bytes)

    def read_many(self, keys: Sequence[str]) -> Sequence[bytes]:
        return [self._copy().read(key) for key in keys]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "store")
    for checkpoint in (FIRST, SECOND):
        upload = report(made, checkpoint, BODY)
        made.publish(checkpoint, False, [upload.attempt])
    return made


@pytest.fixture
def node(tmp_path: Path, store: Store) -> Callable[[str], Node]:
    nodes: dict[str, Node] = {}
    return lambda name: Node(tmp_path, name, store, nodes)


def assert_whole(node: Node, checkpoint: str = FIRST) -> None:
    found = node.whole(checkpoint)
    assert found is not None
    assert found.read(f"{checkpoint}/two") == found.read(f"{checkpoint}/a/one") == BODY
    assert found.info(f"{checkpoint}/empty").is_dir  # type: ignore[union-attr]


def test_all_readers_of_a_node_share_one_copy(store: Store, node: Callable[[str], Node]) -> None:
    here = node("one")
    with ThreadPoolExecutor(READERS_COUNT) as readers:
        assert all(readers.map(here.brought.bring, [FIRST] * READERS_COUNT))
    assert_whole(here)
    assert store.read_bytes == len(BODY)
    assert here.brought.bring(FIRST)
    assert store.read_bytes == len(BODY)


def test_one_node_reads_from_the_store_and_the_others_from_it(
    store: Store, node: Callable[[str], Node]
) -> None:
    nodes = [node(name) for name in ("one", "two", "three")]
    with ThreadPoolExecutor(len(nodes)) as readers:
        assert all(readers.map(lambda one: one.brought.bring(FIRST), nodes))
    for one in nodes:
        assert_whole(one)
    assert store.read_bytes == len(BODY)


def test_who_had_it_and_is_gone_is_not_waited_for(
    store: Store, node: Callable[[str], Node]
) -> None:
    one, two, three = node("one"), node("two"), node("three")
    assert one.brought.bring(FIRST)
    one.is_up = False
    assert two.brought.bring(FIRST)
    assert store.read_bytes == 2 * len(BODY)
    assert three.brought.bring(FIRST)
    assert store.read_bytes == 2 * len(BODY), "the third one did not go to the second one"
    for there in (two, three):
        assert_whole(there)


def test_a_third_node_takes_it_from_the_second_when_the_first_is_gone(
    store: Store, node: Callable[[str], Node]
) -> None:
    one, two, three = node("one"), node("two"), node("three")
    assert one.brought.bring(FIRST) and two.brought.bring(FIRST)
    one.is_up = False
    assert three.brought.bring(FIRST)
    assert_whole(three)
    assert store.read_bytes == len(BODY)


def test_what_arrives_damaged_from_another_node_is_read_from_the_store(
    store: Store, node: Callable[[str], Node]
) -> None:
    one, two = node("one"), node("two")
    assert one.brought.bring(FIRST)
    found = one.whole()
    assert found is not None
    with found.held() as directory:
        assert directory is not None
        path = directory / "two"
        path.write_bytes(b"?" + BODY[1:])  # memory that flips bits
    assert two.brought.bring(FIRST)
    assert_whole(two)


def test_what_is_damaged_in_the_store_leaves_nothing_here(
    store: Store, node: Callable[[str], Node]
) -> None:
    here = node("one")
    store.flips = True
    assert not here.brought.bring(FIRST)
    assert here.whole() is None
    assert here.budget.taken_bytes == 0
    store.flips = False
    assert here.brought.bring(FIRST)
    assert_whole(here)


def test_without_room_each_reader_reads_by_itself(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Node(tmp_path, "small", store, {})
    monkeypatch.setattr(here.budget, "_limit_bytes", len(BODY))
    assert not here.brought.bring(FIRST)
    assert store.read_bytes == 0
    assert here.budget.taken_bytes == 0


def test_what_is_not_stored_is_not_brought(store: Store, node: Callable[[str], Node]) -> None:
    assert not node("one").brought.bring("t/checkpoint_000009")


@pytest.mark.parametrize("ranks_count", [1, 8])
def test_before_it_is_stored_the_home_nodes_replica_is_brought(
    tmp_path: Path, store: Store, node: Callable[[str], Node], ranks_count: int
) -> None:
    attempt = report(NodeDisk(tmp_path / "replicas"), THIRD, BODY, ranks_count).attempt
    if ranks_count > 1:  # of which one reported
        assert not node("early").brought.bring(THIRD)
        StagedCopies(tmp_path / "replicas").note_parts(THIRD, attempt, [attempt])
    here = node("one")
    assert here.brought.bring(THIRD)
    assert_whole(here, THIRD)
    assert store.read_bytes == 0
    assert here.budget.taken_bytes == 2 * len(BODY)
    assert here.brought.free()
    assert here.budget.taken_bytes == 0


def test_of_a_replica_that_does_not_come_whole_nothing_stays(
    tmp_path: Path, node: Callable[[str], Node]
) -> None:
    report(NodeDisk(tmp_path / "replicas"), THIRD, BODY)
    here = node("one")
    here.link_breaks = True
    assert not here.brought.bring(THIRD)
    assert (here.whole(THIRD), here.budget.taken_bytes) == (None, 0)
    here.link_breaks = False
    assert here.brought.bring(THIRD)
    assert_whole(here, THIRD)


def test_what_was_reported_anew_replaces_what_was_brought_before(
    tmp_path: Path, node: Callable[[str], Node]
) -> None:
    """Its trial lost the first one before it was stored. The clocks of writers differ."""
    here, replicas = node("one"), StagedCopies(tmp_path / "replicas")
    for body, ahead_s in ((bytes(len(BODY)), 3600.0), (BODY, 0.0)):
        for _, name in list(replicas.attempts()):
            assert replicas.remove(THIRD, name)
        upload = report(NodeDisk(tmp_path / "replicas"), THIRD, body)
        seal = replicas.seal(THIRD, upload.attempt)
        assert seal is not None
        seal = replace(seal, sealed_s=seal.sealed_s + ahead_s)
        NodeDisk(tmp_path / "replicas").seal(THIRD, seal)
        assert here.brought.bring(THIRD)
    assert_whole(here, THIRD)
    first = here.whole(THIRD)
    assert here.brought.bring(THIRD) and here.whole(THIRD) == first, "it is here already"


def test_bytes_of_a_copy_that_was_begun_before_are_not_those_of_the_next(
    node: Callable[[str], Node],
) -> None:
    here, names = node("one"), ("0" * 32, "1" * 32)
    for name in names:
        here.taking.begin(THIRD, name, {"two": len(BODY)}, "readers")
    key = layout.staged_key(THIRD, names[0]) + "/two"
    here.taking.write([Piece(key, 0, 4)], memoryview(b"late"), 0)
    assert not (here.brought.home.store.path(layout.staged_key(THIRD, names[1])) / "two").exists()


def test_a_replica_whose_sender_dies_on_the_way_is_swept(node: Callable[[str], Node]) -> None:
    here, name = node("one"), "0" * 32
    here.taking.begin(THIRD, name, {"two": len(BODY)}, "readers")
    assert here.budget.taken_bytes == len(BODY)
    here.clock.now_s += SILENT_S + 1.0
    assert here.taking.sweep() == [THIRD]
    assert here.budget.taken_bytes == 0


def test_room_is_made_of_what_nobody_reads(node: Callable[[str], Node]) -> None:
    here = node("one")
    assert here.brought.bring(FIRST) and here.brought.bring(SECOND)
    read = here.whole(SECOND)
    assert read is not None
    with read.held():
        assert here.brought.free()
        assert not here.brought.free()
    assert here.whole() is None
    assert_whole(here, SECOND)
    assert here.brought.free()
    assert here.budget.taken_bytes == 0


def test_a_copy_of_what_had_the_name_before_is_not_what_is_stored(
    tmp_path: Path, store: Store, node: Callable[[str], Node]
) -> None:
    """A replica was brought and then lost, and its trial reported other bytes."""
    report(NodeDisk(tmp_path / "replicas"), THIRD, bytes(len(BODY)))
    here = node("one")
    assert here.brought.bring(THIRD)
    upload = report(store, THIRD, BODY)
    store.publish(THIRD, False, [upload.attempt])
    assert here.brought.bring(THIRD)
    assert_whole(here, THIRD)


def test_what_nobody_reads_any_more_goes_by_itself(node: Callable[[str], Node]) -> None:
    here = node("one")
    assert here.brought.bring(FIRST) and here.brought.bring(SECOND)
    here.clock.now_s += IDLE_S
    here.brought.wait(SECOND)  # another node reads it here
    here.clock.now_s += 1.0
    here.brought.sweep()
    assert here.whole() is None
    assert_whole(here, SECOND)


def test_a_store_that_fails_fails_nobody_here(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, entered, go_on = Node(tmp_path, "one", store, {}), threading.Event(), threading.Event()

    def fails(key: str, recursive: bool) -> list[Info]:
        entered.set()
        go_on.wait(20.0)
        raise StoreUnreachableError("it does not answer")

    monkeypatch.setattr(store, "list", fails)
    with ThreadPoolExecutor(2) as readers:
        first = readers.submit(here.brought.bring, FIRST)
        assert entered.wait(20.0)
        second = readers.submit(here.brought.bring, FIRST)
        go_on.set()
        assert not first.result() and not second.result()
    monkeypatch.undo()
    assert here.brought.bring(FIRST)


def test_that_none_can_be_brought_is_said_now_and_then_and_not_of_each(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(key: str, recursive: bool) -> list[Info]:
        raise StoreUnreachableError("it does not answer")

    here = Node(tmp_path, "one", store, {})
    monkeypatch.setattr(store, "list", fails)
    for passed_s, said_count in ((0.0, 1), (SAY_S - 1.0, 1), (1.0, 2)):
        here.clock.now_s += passed_s
        for checkpoint in (FIRST, SECOND):
            assert not here.brought.bring(checkpoint)
        said = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        assert len(said) == said_count
        assert said[-1] == f"each reader of {FIRST} here reads it by itself: it does not answer"


def test_a_large_file_comes_in_steps(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    body = bytes(STEP_BYTES + 1)
    upload = report(store, FIRST, body)
    store.publish(FIRST, False, [upload.attempt])
    here = Node(tmp_path, "one", store, {})
    here.budget._limit_bytes = 4 * STEP_BYTES
    assert here.brought.bring(FIRST)
    found = here.whole()
    assert found is not None
    assert found.read(f"{FIRST}/two") == body
