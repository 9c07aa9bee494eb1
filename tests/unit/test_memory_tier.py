"""Checkpoints are staged in memory while there is room, on the disk else, and nothing is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_node_sender import FIRST, SECOND, Shaky, until
from tune_sync.behind.memory_home import Memory
from tune_sync.behind.node_sender import NodeSender
from tune_sync.behind.staging_home import StagingHome
from tune_sync.errors import StoreFullError
from tune_sync.fastpath.budget import Budget
from tune_sync.layout import STAGING_DIR
from tune_sync.sending.orders import Orders
from tune_sync.transfer.upload import CheckpointUpload

pytestmark = pytest.mark.in_shared_memory

BODY = bytes(range(256)) * 40  # of two files each
REPOSITORY = Path(__file__).parents[2]
THIRD = "t/checkpoint_000002"


@pytest.fixture
def home(tmp_path: Path) -> Shaky:
    return Shaky(tmp_path / "home")


class Node:
    """A node's agent and memory, and what a trial there writes through.

    Args:
        base: A directory of the test's.
        home: The destination.
        run: Name of the run.
        limit_bytes: Of the memory.
        most_count: Of checkpoints of a trial.
        disk_limit_bytes: Of the disk.
        shm: Shared memory.
    """

    def __init__(
        self, base: Path, home: Shaky, run: str = "run", *, limit_bytes: int = 1 << 20,
        most_count: int = 2, disk_limit_bytes: int = 1 << 30, shm: Path | None = None,
        **staging: Any,
    ) -> None:  # fmt: skip
        shm = shm or base / "shm"
        shm.mkdir(exist_ok=True)
        self.disk, self.budget = base / "disk" / run / "node1", Budget(shm, limit_bytes)
        self.memory = self.budget.folder / run / "node1"
        self._home, self._given = home, Memory(self.memory, self.budget, most_count)
        self._staging, self._disk_limit_bytes = staging, disk_limit_bytes
        self.start()

    def start(self) -> None:
        self.agent = NodeSender(
            self.disk, lambda: self._home, self._disk_limit_bytes, memory=self.memory,
            first_pause_s=0.01,
        )  # fmt: skip
        self.staging = StagingHome(
            self._home, self.disk, self.agent, "node1", memory=self._given, **self._staging
        )

    def report(self, checkpoint: str, body: bytes = BODY) -> CheckpointUpload:
        upload = CheckpointUpload(self.staging, checkpoint, 0)
        for name in ("a/one", "two"):
            with upload.open(name) as stream:
                stream.write(body)
        upload.copied(1)
        assert upload.seal()
        return upload

    def where(self, upload: CheckpointUpload) -> str:
        name = upload.reported_as.partition("@")[0]
        roots = {"memory": self.memory / STAGING_DIR, "disk": self.disk / STAGING_DIR}
        found = [where for where, root in roots.items() if any(root.rglob(name))]
        return " and ".join(found)

    def publish(self, upload: CheckpointUpload, checkpoint: str) -> dict[str, bytes]:
        name = upload.reported_as.partition("@")[0]
        news = until(self.agent, lambda n: name in n.stored)
        placed = self._home.committer.place(checkpoint, attempts=[news.stored[name]])
        self._home.committer.record(placed.manifest)
        root = self._home.root / checkpoint
        return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


WHOLE = {"a/one": BODY, "two": BODY}


@pytest.fixture
def make(tmp_path: Path, home: Shaky) -> Iterator[Callable[..., Node]]:
    made: list[Node] = []

    def node(run: str = "run", **limits: Any) -> Node:
        made.append(Node(tmp_path, home, run, **limits))
        return made[-1]

    yield node
    for one in made:
        one.agent.end()


def test_a_checkpoint_is_in_memory_and_goes_from_there(make: Callable[..., Node]) -> None:
    node = make()
    upload = node.report(FIRST)
    assert node.where(upload) == "memory"
    assert upload.reported_as == f"{upload.attempt}@node1"
    assert node.publish(upload, FIRST) == WHOLE
    assert node.memory.parents[1].stat().st_mode & 0o777 == 0o700


def test_what_passes_the_limit_is_on_the_disk_and_that_is_said_once_with_sizes(
    make: Callable[..., Node], home: Shaky, caplog: pytest.LogCaptureFixture
) -> None:
    home.is_up = False
    node = make(limit_bytes=50_000, most_count=9)
    uploads = {name: node.report(name) for name in (FIRST, SECOND, THIRD)}
    assert [node.where(u) for u in uploads.values()] == ["memory", "memory", "disk"]
    assert all(u.reported_as.endswith("@node1") for u in uploads.values())
    assert node.budget.taken_bytes <= 50_000
    node.report("t/checkpoint_000003")
    said = [r.message for r in caplog.records if "there is no place" in r.message]
    assert len(said) == 1
    for part in (THIRD, "20480 bytes more", "memory limit of 50000 bytes", str(node.disk)):
        assert part in said[0]
    assert "nothing is lost" in said[0]
    assert "Errno" not in said[0]
    home.is_up = True
    for name, upload in uploads.items():
        assert node.publish(upload, name) == WHOLE


def test_one_file_larger_than_the_limit_goes_on_where_it_was(
    make: Callable[..., Node], tmp_path: Path
) -> None:
    node = make(limit_bytes=3 << 20)
    large = os.urandom(8 << 20)
    upload = CheckpointUpload(node.staging, FIRST, 0)
    with upload.open("streamed") as stream:  # nobody knows how long it gets
        for start in range(0, len(large), 1 << 20):
            stream.write(large[start : start + (1 << 20)])
    source = tmp_path / "large"
    source.write_bytes(large)
    upload.add_file("known", source)
    upload.copied(1)
    assert upload.seal()
    assert node.where(upload) == "disk"
    assert node.publish(upload, FIRST) == {"streamed": large, "known": large}
    assert not list(node.memory.rglob("streamed"))


def test_what_was_taken_over_in_memory_spills_with_its_digest(
    make: Callable[..., Node], tmp_path: Path
) -> None:
    node = make(limit_bytes=3 << 20)
    large = os.urandom(2 << 20)
    (tmp_path / "large").write_bytes(large)
    upload = CheckpointUpload(node.staging, FIRST, 0)
    upload.add_file("one", tmp_path / "large")
    assert any(node.memory.rglob("one"))
    upload.add_file("two", tmp_path / "large")
    upload.copied(1)
    assert upload.seal()
    assert node.where(upload) == "disk"
    assert node.publish(upload, FIRST) == {"one": large, "two": large}


def test_what_is_made_on_the_disk_is_handed_over_there(make: Callable[..., Node]) -> None:
    node = make()
    made = node.staging.make_directory()
    assert made is not None
    (made / "large").write_bytes(BODY)
    inode = (made / "large").stat().st_ino
    upload = CheckpointUpload(node.staging, FIRST, 0)
    upload.add_file("large", made / "large", is_given=True)
    upload.copied(1)
    assert upload.seal()
    assert [path.stat().st_ino for path in node.disk.rglob("large")] == [inode]
    assert upload.reported_as.endswith("@node1")
    assert node.publish(upload, FIRST) == {"large": BODY}
    made.rmdir()
    assert node.where(node.report(SECOND)) == "memory"


def test_a_trial_has_so_many_in_memory_and_what_is_not_stored_stays(
    make: Callable[..., Node], home: Shaky
) -> None:
    home.is_up = False
    node = make(most_count=2)
    first, second, third = (node.report(name) for name in (FIRST, SECOND, THIRD))
    other = node.report("u/checkpoint_000000")
    assert [node.where(u) for u in (first, second, third, other)] == [
        "memory", "memory", "disk", "memory",
    ]  # fmt: skip
    home.is_up = True
    assert node.publish(first, FIRST) == WHOLE
    node.agent.exchange(Orders(published=[first.attempt]))
    assert node.where(node.report("t/checkpoint_000003")) == "memory"
    assert node.where(first) == ""
    assert node.where(second) == "memory"


def test_a_newest_copy_makes_way_where_there_is_no_other_room(make: Callable[..., Node]) -> None:
    node = make(limit_bytes=25_000)
    kept = node.report("u/checkpoint_000000")
    node.publish(kept, "u/checkpoint_000000")
    node.agent.exchange(Orders(published=[kept.attempt]))
    assert node.where(kept) == "memory"
    assert node.where(node.report(FIRST)) == "memory"
    assert node.where(kept) == ""


def test_what_is_in_memory_takes_no_room_of_the_disk(
    make: Callable[..., Node], home: Shaky
) -> None:
    home.is_up = False
    node = make(most_count=1, disk_limit_bytes=len(BODY))
    node.report(FIRST)
    assert node.agent.has_room()
    assert node.where(node.report(SECOND)) == "disk"
    assert not node.agent.has_room()


def test_runs_begin_and_end_at_one_time(tmp_path: Path, home: Shaky) -> None:
    """Whoever ends removes the directory that others are about to use."""

    def begin_and_end(name: str) -> None:
        for _ in range(30):
            node = Node(tmp_path, home, name)
            node.staging.begin(FIRST)
            assert any(node.memory.rglob("data")), "not in memory"
            node.agent.end()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(begin_and_end, "abcd"))
    assert not list((tmp_path / "shm").iterdir())


def test_a_new_agent_finds_what_is_in_memory_and_what_is_on_the_disk(
    make: Callable[..., Node], home: Shaky
) -> None:
    home.is_up = False
    node = make(most_count=1)
    uploads = {name: node.report(name) for name in (FIRST, SECOND)}
    assert [node.where(u) for u in uploads.values()] == ["memory", "disk"]
    node.agent.end(leave=True)
    home.is_up = True
    node.start()
    for name, upload in uploads.items():
        assert node.publish(upload, name) == WHOLE


def test_two_runs_share_what_there_is(make: Callable[..., Node], home: Shaky) -> None:
    home.is_up = False
    one, other = make("one", limit_bytes=50_000), make("other", limit_bytes=50_000)
    places = [node.where(node.report(FIRST)) for node in (one, other)]
    assert places == ["memory", "memory"]
    assert one.where(one.report(SECOND)) == "disk"
    other.agent.end()
    assert one.where(one.report(THIRD)) == "memory"


def test_two_processes_do_not_take_the_same_room(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from tune_sync.fastpath.budget import Budget\n"
        "from tune_sync.errors import StoreFullError\n"
        "budget = Budget(Path(sys.argv[1]), 1000); count = 0\n"
        "attempt = budget.folder / sys.argv[2]; attempt.mkdir()\n"
        "try:\n"
        "    while True: budget.take(attempt, 7); count += 1\n"
        "except StoreFullError: print(count)\n"
    )
    budget = Budget(tmp_path, 1000)
    budget.folder.mkdir(mode=0o700)
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path), name], stdout=subprocess.PIPE, text=True
        )
        for name in ("a", "b")
    ]
    counts = [int(one.communicate(timeout=250)[0]) for one in running]
    assert sum(counts) == 1000 // 7
    assert budget.taken_bytes == 7 * sum(counts)


def test_a_file_that_goes_while_it_is_counted_hides_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = Budget(tmp_path, 1000)
    attempt = budget.folder / "z" / "attempt"
    attempt.mkdir(parents=True)
    budget.folder.chmod(0o700)
    budget.take(attempt, 100)
    gone = budget.folder / "a"
    gone.write_bytes(b"slot")
    entries = sorted(os.scandir(budget.folder), key=lambda entry: entry.name)
    gone.unlink()
    scandir = os.scandir

    def listed_before(path: Path) -> Any:
        return entries if path == budget.folder else scandir(path)

    monkeypatch.setattr(os, "scandir", listed_before)
    assert budget.taken_bytes == 100


def test_without_a_limit_half_of_what_is_there_is_taken(tmp_path: Path) -> None:
    budget = Budget(tmp_path)
    budget.folder.mkdir(mode=0o700)
    assert budget.has(1)
    with pytest.raises(StoreFullError, match="memory limit"):
        budget.take(tmp_path, 1 << 50)


def test_memory_that_others_may_write_to_is_not_used(
    make: Callable[..., Node], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "shm").mkdir()
    folder = Budget(tmp_path / "shm").folder
    folder.mkdir()
    folder.chmod(0o775)
    node = make()
    assert node.where(node.report(FIRST)) == "disk"
    assert "open to others" in caplog.text


def test_at_the_end_nothing_is_left(make: Callable[..., Node]) -> None:
    node = make()
    node.publish(node.report(FIRST), FIRST)
    node.agent.end()
    assert not node.budget.folder.exists()


def test_what_is_read_stays_until_it_is_read(make: Callable[..., Node]) -> None:
    node = make()
    first = node.report(FIRST)
    node.publish(first, FIRST)
    with node.staging.held(FIRST) as directory:
        assert directory is not None
        assert node.memory in directory.parents
        node.agent.exchange(Orders(published=[first.attempt], dropped=[first.attempt]))
        assert (directory / "two").read_bytes() == BODY
    node.agent.exchange(Orders(published=[first.attempt], dropped=[first.attempt]))
    assert node.where(first) == ""
    with node.staging.held(FIRST) as directory:
        assert directory is None


def test_a_destination_on_this_node_takes_what_finds_no_room_in_memory(
    make: Callable[..., Node], home: Shaky
) -> None:
    node = make(limit_bytes=1000, stays_here=True)
    upload = node.report(FIRST)
    assert "@" not in upload.reported_as
    assert not list(node.disk.rglob("two"))
    placed = home.committer.place(FIRST, attempts=[upload.reported_as])
    home.committer.record(placed.manifest)
    assert (home.root / FIRST / "two").read_bytes() == BODY


SMALL_SHM = """
import os, subprocess, sys
from pathlib import Path
shm, base = Path(sys.argv[1]), Path(sys.argv[2])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", shm], check=True)
from tests.unit.test_memory_tier import FIRST, Node, Shaky
from tune_sync.transfer.upload import CheckpointUpload
node = Node(base, Shaky(base / "home"), shm=shm, limit_bytes=1 << 30)
small = node.report(FIRST)
assert node.where(small) == "memory"
large = node.report("u/checkpoint_000000", os.urandom(4 << 20))
assert node.where(large) == "disk", node.where(large)
node.publish(small, FIRST), node.publish(large, "u/checkpoint_000000")
node.agent.end()
assert not list(shm.iterdir())
print("done")
"""


def test_shared_memory_smaller_than_one_checkpoint_fails_nothing(tmp_path: Path) -> None:
    shm = tmp_path / "small"
    shm.mkdir()
    own = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    done = subprocess.run(
        [*own, sys.executable, "-c", SMALL_SHM, str(shm), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, capture_output=True, text=True,
        timeout=250,
    )  # fmt: skip
    assert done.stdout == "done\n", done.stderr
    assert "are free" in done.stderr
