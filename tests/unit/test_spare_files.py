"""Large files in memory that are removed become the next ones, and nobody sees other bytes."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.unit.replica_peer import Peer
from tests.unit.test_memory_tier import Node, make
from tests.unit.test_node_sender import FIRST, SECOND, Shaky
from tune_sync.errors import NotWholeError
from tune_sync.fastpath import Slots, leases, spares
from tune_sync.fastpath import slots as slots_module
from tune_sync.fastpath.takes import TAKES, grow
from tune_sync.homes.home import Piece
from tune_sync.layout import attempt_key, staged_key
from tune_sync.manifest import FileEntry, Seal
from tune_sync.sending.orders import Orders
from tune_sync.transfer.upload import CheckpointUpload

pytestmark = pytest.mark.in_shared_memory

__all__ = ["make"]  # a fixture

LARGE = spares.LARGE_BYTES + (1 << 20)
STEP = LARGE // 4
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def home(tmp_path: Path) -> Shaky:
    return Shaky(tmp_path / "home")


@pytest.fixture
def peer(tmp_path: Path, home: Shaky) -> Iterator[Peer]:
    made = Peer(tmp_path / "peer", home, 6 * LARGE)
    yield made
    made.agent.end()


class Replica:
    """A copy of one large file that arrives on a node."""

    def __init__(self, peer: Peer, checkpoint: str, size_bytes: int = LARGE) -> None:
        self.checkpoint, self.attempt = checkpoint, uuid.uuid4().hex
        self.peer, self.size_bytes = peer, size_bytes
        self.key = f"{staged_key(checkpoint, self.attempt)}/large"
        self.path = peer.memory / self.key
        peer.replicas.begin(checkpoint, self.attempt, {"large": size_bytes}, "memory")

    def write(self, body: bytes, at_bytes: int = 0) -> None:
        piece = [Piece(self.key, 0, len(body))]
        self.peer.replicas.write(piece, memoryview(body), at_bytes)

    def seal(self) -> None:
        files = (FileEntry("large", self.size_bytes, ""),)
        seal = Seal(self.attempt, 0, 1.0, files, (), ranks_count=1)
        self.peer.replicas.seal(self.checkpoint, seal)

    def remove(self) -> None:
        assert self.peer.agent.forget(self.checkpoint, self.attempt)


def arrived(peer: Peer, checkpoint: str, byte: bytes, size_bytes: int = LARGE) -> Replica:
    made = Replica(peer, checkpoint, size_bytes)
    for start in range(0, size_bytes, STEP):
        made.write(byte * min(STEP, size_bytes - start), start)
    made.seal()
    return made


def spare_files(peer: Peer | Node) -> list[Path]:
    return sorted(peer.memory.parents[1].glob("*.spare"))


def test_a_replica_is_written_to_the_pages_of_one_that_has_gone(peer: Peer) -> None:
    kept, first = arrived(peer, "u/checkpoint_000000", b"k"), arrived(peer, FIRST, b"a")
    inode = first.path.stat().st_ino
    first.remove()
    assert len(spare_files(peer)) == 1
    second = arrived(peer, SECOND, b"b", LARGE - 1000)
    assert second.path.stat().st_ino == inode
    assert second.path.read_bytes() == b"b" * (LARGE - 1000)
    assert second.path.stat().st_mode == kept.path.stat().st_mode
    assert not spare_files(peer)
    assert arrived(peer, FIRST, b"c").path.stat().st_ino != inode


@pytest.mark.parametrize("size_bytes", [LARGE + 1000, LARGE, LARGE - 1000])
def test_what_it_takes_of_the_budget_stays_what_it_was(peer: Peer, size_bytes: int) -> None:
    budget = peer.replicas._homes["memory"]._memory.budget  # type: ignore[union-attr]
    arrived(peer, "u/checkpoint_000000", b"k")
    first = arrived(peer, FIRST, b"a")
    before_bytes = budget.taken_bytes
    first.remove()
    assert LARGE <= before_bytes - budget.taken_bytes + LARGE < LARGE + 4096, "it counts"
    inode = Path(spare_files(peer)[0]).stat().st_ino
    second = Replica(peer, SECOND, size_bytes)
    assert (second.path.stat().st_ino, second.path.stat().st_size) == (inode, size_bytes)
    taken = peer.memory / attempt_key(SECOND, second.attempt) / TAKES
    assert taken.stat().st_size == size_bytes


@pytest.mark.parametrize("how", ["mapped", "open", "linked", "spoken for later"])
def test_who_has_a_file_never_sees_other_bytes(peer: Peer, tmp_path: Path, how: str) -> None:
    arrived(peer, "u/checkpoint_000000", b"k")
    first = arrived(peer, FIRST, b"a")
    with open(first.path, "rb") as file:
        seen: Any = file
        if how == "mapped":
            seen = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            file.close()
        elif how == "linked":
            os.link(first.path, tmp_path / "link")
            file.close()
            seen = tmp_path / "link"
        elif how == "spoken for later":
            file.close()
        first.remove()
        if how == "spoken for later":
            seen = open(spare_files(peer)[0], "rb")  # noqa: SIM115
        else:
            assert not spare_files(peer)
        arrived(peer, SECOND, b"b")
        body = seen.read_bytes() if isinstance(seen, Path) else seen.read()
        assert body == b"a" * LARGE
        if how == "spoken for later":
            seen.close()


@pytest.mark.parametrize("missing", [0, 2, 3])
def test_what_was_not_written_is_no_content(peer: Peer, missing: int) -> None:
    arrived(peer, "u/checkpoint_000000", b"k")
    first = arrived(peer, FIRST, b"a")
    inode = first.path.stat().st_ino
    first.remove()
    second = Replica(peer, SECOND)
    assert second.path.stat().st_ino == inode
    for part in {0, 1, 2, 3} - {missing}:
        second.write(b"b" * STEP, part * STEP)
    with pytest.raises(NotWholeError, match="large"):
        second.seal()
    assert not peer.whole(SECOND)


def test_a_file_that_gets_shorter_than_it_was_said_to_be_is_as_long_as_it_is(
    make: Callable[..., Node],
) -> None:
    node = with_spare(make)
    upload = CheckpointUpload(node.staging, SECOND, 0)
    node.staging.expect(upload.key("large"), LARGE)
    assert not spare_files(node)
    with upload.open("large") as stream:
        stream.write(b"b" * (LARGE - 4096))
    upload.copied(1)
    assert upload.seal()
    assert node.publish(upload, SECOND) == {"large": b"b" * (LARGE - 4096)}


def with_spare(make: Callable[..., Node], **settings: Any) -> Node:
    """A node where a checkpoint of one large file has just gone, and another is kept."""
    node = make(**({"limit_bytes": 5 * LARGE} | settings))
    for checkpoint in ("u/checkpoint_000000", FIRST):
        upload = copied(node, checkpoint, b"a" * LARGE)
        node.publish(upload, checkpoint)
    node.agent.exchange(Orders(published=[upload.attempt], dropped=[upload.attempt]))
    assert len(spare_files(node)) == 1
    return node


def copied(node: Node, checkpoint: str, body: bytes) -> CheckpointUpload:
    source = node.disk.parents[2] / "source"
    source.write_bytes(body)
    upload = CheckpointUpload(node.staging, checkpoint, 0)
    upload.add_file("large", source)
    upload.copied(1)
    assert upload.seal()
    return upload


@pytest.mark.parametrize("size_bytes", [LARGE + 5000, LARGE, LARGE + 5])
def test_a_plain_directory_is_copied_to_pages_that_are_there(
    make: Callable[..., Node], size_bytes: int
) -> None:
    node = with_spare(make)
    inode = spare_files(node)[0].stat().st_ino
    upload = copied(node, SECOND, b"b" * size_bytes)
    assert [path.stat().st_ino for path in node.memory.rglob(f"{upload.attempt}/data/large")] == [
        inode
    ]
    assert node.publish(upload, SECOND) == {"large": b"b" * size_bytes}


def test_what_a_user_has_made_is_not_used_again(make: Callable[..., Node]) -> None:
    node = make(limit_bytes=5 * LARGE)
    copied(node, "u/checkpoint_000000", b"k" * LARGE)
    made = node.staging.make_directory(LARGE)
    assert made is not None and made.is_relative_to(node.memory)
    (made / "large").write_bytes(b"a" * LARGE)
    upload = CheckpointUpload(node.staging, FIRST, 0)
    upload.add_file("large", made / "large", is_given=True)
    upload.copied(1)
    assert upload.seal()
    assert node.publish(upload, FIRST) == {"large": b"a" * LARGE}
    node.agent.exchange(Orders(published=[upload.attempt], dropped=[upload.attempt]))
    assert not node.where(upload)
    assert not spare_files(node)


def test_a_source_that_has_shrunk_is_copied_as_it_is(make: Callable[..., Node]) -> None:
    node = with_spare(make)
    key = CheckpointUpload(node.staging, SECOND, 0).key("large")
    source = node.disk.parents[2] / "source"
    source.write_bytes(b"b" * LARGE)
    memory: Any = node.staging._memory
    memory._take({key: LARGE}, are_whole=True)
    assert not spare_files(node)
    source.write_bytes(b"b" * 5)
    memory.take(key, source, is_given=False)
    assert (node.memory / key).read_bytes() == b"b" * 5


def test_others_get_the_room_of_spare_files(make: Callable[..., Node]) -> None:
    """Another run's; and what fits is used first."""
    node = with_spare(make, limit_bytes=4 * LARGE)
    other = make("other", limit_bytes=4 * LARGE)
    assert other.where(other.report(FIRST, b"x" * (LARGE + LARGE // 4))) == "memory"
    assert not spare_files(node)
    assert node.budget.taken_bytes < 4 * LARGE


def test_slots_get_the_room_of_spare_files(
    make: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = with_spare(make)
    monkeypatch.setattr(
        slots_module, "memory_available_bytes", lambda: 0 if spare_files(node) else 1 << 40
    )
    slots = Slots(node.budget.folder.parent, max_checkpoints_in_memory=1)
    assert slots.take(1 << 20) is not None
    slots.close()
    assert not spare_files(node)


def test_where_memory_is_short_none_is_kept(
    make: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = with_spare(make)
    monkeypatch.setattr(spares, "memory_available_bytes", lambda: LARGE - 1)
    node.agent.exchange(Orders())
    assert not spare_files(node)


def test_what_nobody_takes_goes_after_a_while(make: Callable[..., Node]) -> None:
    node = with_spare(make)
    (spare,) = spare_files(node)
    node.agent.exchange(Orders())
    assert spare.exists()
    os.utime(spare, (0, spare.stat().st_mtime - spares.IDLE_S - 1))
    node.agent.exchange(Orders())
    assert not spare.exists()


def test_there_are_never_more_than_is_staged(peer: Peer) -> None:
    some = [arrived(peer, f"{trial}/checkpoint_000000", b"a") for trial in "tuv"]
    for one in some[:2]:
        one.remove()
    peer.agent.exchange(Orders())
    assert len(spare_files(peer)) == 1
    some[2].remove()
    peer.agent.exchange(Orders())
    assert not spare_files(peer)


def test_there_are_so_many_at_most(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spares, "MOST_COUNT", 1)
    some = [arrived(peer, f"{trial}/checkpoint_000000", b"a") for trial in "tuvw"]
    some[0].remove()
    (first,) = spare_files(peer)
    some[1].remove()
    (second,) = spare_files(peer)
    assert first != second, "the newest one stays"


def test_what_was_given_up_is_told_as_that(make: Callable[..., Node]) -> None:
    node = with_spare(make)
    upload = CheckpointUpload(node.staging, SECOND, 0)
    node.staging.expect(upload.key("large"), LARGE)
    assert not spare_files(node)
    node.staging.discard_attempt(SECOND, upload.attempt)
    seal = Seal(upload.attempt, 0, 1.0, (FileEntry("large", LARGE, ""),), (), ranks_count=1)
    memory: Any = node.staging._memory
    with pytest.raises(NotWholeError, match="is over"):
        memory.seal(SECOND, seal)


@pytest.mark.parametrize("code", ["EINVAL", "EACCES"])
def test_without_leases_it_is_as_without_spare_files(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    def refuses(*args: Any) -> int:
        raise OSError(getattr(errno, code), "no leases")

    monkeypatch.setattr(leases.fcntl, "fcntl", refuses)
    first = arrived(peer, FIRST, b"a")
    first.remove()
    assert not spare_files(peer)
    assert arrived(peer, SECOND, b"b").path.read_bytes() == b"b" * LARGE


def test_at_the_end_none_is_left(make: Callable[..., Node]) -> None:
    node = with_spare(make)
    node.agent.end()
    assert not node.budget.folder.exists()


KILLED = """
import os, sys
from pathlib import Path
from tests.unit.replica_peer import Peer
from tests.unit.test_node_sender import FIRST, Shaky
from tests.unit.test_spare_files import arrived, spare_files
base = Path(sys.argv[1])
peer = Peer(base / "peer", Shaky(base / "home"), 1 << 26)
arrived(peer, "u/checkpoint_000000", b"k")
arrived(peer, FIRST, b"a").remove()
assert spare_files(peer)
os.kill(os.getpid(), 9)
"""


def test_those_of_a_killed_agent_give_way(tmp_path: Path, make: Callable[..., Node]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )  # fmt: skip
    assert done.returncode == -9
    shm = tmp_path / "peer" / "shm"
    assert list(shm.rglob("*.spare"))
    node = make("other", shm=shm, limit_bytes=2 * LARGE)
    assert node.where(node.report(FIRST, b"x" * (LARGE // 4))) == "memory"
    assert not list(shm.rglob("*.spare"))


def test_of_two_who_want_one_spare_file_one_gets_it(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    memory = folder / "run" / "node"
    for number in range(10):
        attempt = memory / f"{number}"
        (attempt / "data").mkdir(parents=True)
        folder.chmod(0o700)
        (attempt / "data" / "large").write_bytes(b"a" * LARGE)
        grow(attempt, LARGE)
        spares.Spares(memory).keep(attempt)
        assert (attempt / TAKES).stat().st_size == 0

        def take(name: str, attempt: Path = attempt) -> int:
            return spares.take(attempt, attempt / name, LARGE, folder)

        with ThreadPoolExecutor(4) as pool:
            assert sorted(pool.map(take, "abcd")) == [0, 0, 0, LARGE]
        assert (attempt / TAKES).stat().st_size == LARGE
