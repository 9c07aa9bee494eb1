"""Of two tries at a checkpoint the node of replicas reads the later one, whatever clocks say."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.unit.replica_peer import Peer
from tests.unit.test_node_sender import FIRST
from tests.unit.test_replicas import home, peer
from tune_sync.behind.node_copies import NodeCopies
from tune_sync.behind.node_disk import NodeDisk
from tune_sync.behind.replicas import Room
from tune_sync.behind.staged_copy import StagedCopies
from tune_sync.transfer.upload import CheckpointUpload

pytestmark = pytest.mark.in_shared_memory

__all__ = ["home", "peer"]  # fixtures

AHEAD_S = 300.0


def report(root: Path, body: bytes, ahead_s: float, peer: Peer, room: Room) -> None:
    """On a node whose clock is ahead."""
    upload = CheckpointUpload(NodeDisk(root), FIRST, 0, clock=lambda: time.time() + ahead_s)
    with upload.open("two") as stream:
        stream.write(body)
    upload.copied(1)
    assert upload.seal()
    copies = StagedCopies(root)
    seal = copies.seal(FIRST, upload.attempt)
    assert seal is not None
    peer.send(copies, FIRST, seal, room)


@pytest.mark.parametrize("rooms", [("disk", "disk"), ("memory", "disk"), ("disk", "memory")])
def test_the_try_that_came_last_counts(
    tmp_path: Path, peer: Peer, rooms: tuple[Room, Room]
) -> None:
    report(tmp_path / "a", b"first try, killed", AHEAD_S, peer, rooms[0])
    report(tmp_path / "b", b"second", 0.0, peer, rooms[1])
    found = NodeCopies(peer.memory, peer.disk).whole(FIRST)
    assert found is not None
    assert found.read(f"{FIRST}/two") == b"second"
