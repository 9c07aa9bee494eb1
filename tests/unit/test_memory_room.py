"""Room in a node's memory: who makes some waits for it, and who finds none is told."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.unit.test_memory_tier import BODY, Node, home, make
from tests.unit.test_node_sender import FIRST, SECOND, Shaky, until
from tune_sync.behind.staging_home import StagingHome
from tune_sync.behind.staging_sweep import sweep_trash
from tune_sync.errors import SyncTimeoutError
from tune_sync.fastpath import budget
from tune_sync.homes.store import LocalStore
from tune_sync.layout import STAGING_DIR, TRASH_DIR
from tune_sync.sending.orders import Orders
from tune_sync.transfer.upload import CheckpointUpload

__all__ = ["home", "make"]  # fixtures

KILLED = """
import os, sys
from pathlib import Path
from tune_sync.fastpath import Slots
assert Slots(Path(sys.argv[1]), max_checkpoints_in_memory=1).take(1 << 20)
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("most_count", [1, 9])
def test_who_finds_no_room_in_memory_nor_on_the_disk_is_told_as_without_memory(
    make: Callable[..., Node], home: Shaky, most_count: int
) -> None:
    """At the beginning of a checkpoint, or in its middle."""
    node = make(
        limit_bytes=3 * len(BODY), most_count=most_count, disk_limit_bytes=4, timeout_s=-1.0
    )
    home.is_up = False
    node.report(FIRST)
    fill_disk(node)
    until(node.agent, lambda n: n.left_count == 2)
    with pytest.raises(SyncTimeoutError, match="staging_limit_bytes"):
        node.report(SECOND)


def fill_disk(node: Node) -> None:
    """Another checkpoint is there."""
    other = StagingHome(node.staging._destination, node.disk, node.agent, "node1")
    upload = CheckpointUpload(other, "u/checkpoint_000000", 0)
    with upload.open("one") as stream:
        stream.write(BODY)
    upload.copied(1)
    assert upload.seal()


def test_who_has_one_too_many_waits_for_no_bytes_but_who_needs_them_does(
    make: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, removed = threading.Event(), LocalStore.remove_tree

    def remove_slowly(self: LocalStore, key: str) -> None:
        assert go_on.wait(30.0)
        removed(self, key)

    node = make(limit_bytes=45_000, most_count=1)
    first = node.report(FIRST)
    node.publish(first, FIRST)
    other = node.report("u/checkpoint_000000")
    node.publish(other, "u/checkpoint_000000")
    node.agent.exchange(Orders(published=[first.attempt, other.attempt]))
    taken_bytes = node.budget.taken_bytes
    monkeypatch.setattr(LocalStore, "remove_tree", remove_slowly)
    assert node.agent.free_memory("t")
    assert node.where(first) == ""
    assert node.budget.taken_bytes == taken_bytes, "there is no room for others yet"
    with ThreadPoolExecutor(1) as pool:
        needs = pool.submit(node.agent.free_memory, "")
        time.sleep(0.1)
        assert not needs.done()
        go_on.set()
        assert needs.result(30.0)
    assert node.where(other) == "memory", "it need not go"
    assert node.budget.taken_bytes == taken_bytes / 2
    assert node.agent.free_memory("")
    assert not node.agent.free_memory("")
    assert node.budget.taken_bytes == 0


def test_what_a_killed_agent_had_begun_to_remove_goes(make: Callable[..., Node]) -> None:
    node = make()
    first = node.report(FIRST)
    trash = node.memory / TRASH_DIR / first.attempt
    trash.parent.mkdir(parents=True)
    next(node.memory.rglob(f"{STAGING_DIR}/**/{first.attempt}")).rename(trash)
    assert node.budget.taken_bytes > 0
    sweep_trash(node.memory)
    assert node.budget.taken_bytes == 0


def test_slots_of_a_process_that_was_killed_take_no_room(make: Callable[..., Node]) -> None:
    node = make()
    argv = [sys.executable, "-c", KILLED, str(node.budget.folder.parent)]
    assert subprocess.run(argv, check=False).returncode == -9
    assert node.budget.taken_bytes > 1 << 20
    assert node.where(node.report(FIRST)) == "memory"
    assert node.budget.taken_bytes < 1 << 20


def test_what_passes_what_a_container_has_left_is_on_the_disk(
    make: Callable[..., Node], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also within the limit that was asked for: its processes would be killed."""
    monkeypatch.setattr(budget, "memory_available_bytes", lambda: len(BODY))
    node = make(limit_bytes=1 << 30)
    assert node.where(node.report(FIRST)) == "disk"
    assert f"{len(BODY)} bytes that this machine, or its container, has left" in caplog.text
