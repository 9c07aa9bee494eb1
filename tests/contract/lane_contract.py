"""What every lane does that brings bytes of replicas to another node."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tune_sync.agents.replica_home import ObjectStoreLane
from tune_sync.behind.node_copies import NodeCopies
from tune_sync.behind.replica_intake import EqualSlots, Intake
from tune_sync.behind.replica_lane import ReplicaLane, TransportLane
from tune_sync.behind.replica_message import Message
from tune_sync.behind.replicas import Replicas
from tune_sync.errors import PathRefusedError
from tune_sync.fastpath.transports import Transport
from tune_sync.homes.home import Piece
from tune_sync.layout import staged_key

ATTEMPT, CHECKPOINT = "0" * 32, "t/checkpoint_000000"
STAGED = staged_key(CHECKPOINT, ATTEMPT)
CHUNK_BYTES = 20_000_003  # more than a message of a transport holds
WAIT_S = 150.0


def replicas_at(root: Path) -> Replicas:
    """Those of a node that has a disk only, and expects an attempt."""
    made = Replicas(root, None, lambda trial: False, NodeCopies(root).remove, lambda: True)
    made.begin(CHECKPOINT, ATTEMPT, {}, "disk")
    return made


class LaneContract(ABC):
    """Subclass it, and say how a lane is made."""

    @abstractmethod
    def opened(self, root: Path) -> AbstractContextManager[ReplicaLane]:
        """A lane to a node that has `replicas_at(root)`."""

    def wait(self, ref: Any) -> None:
        """For what a lane returned: without Ray, nothing."""
        assert ref is None

    def send(self, lane: ReplicaLane, message: Message, data: bytes | bytearray) -> None:
        self.wait(lane.send(ATTEMPT, message, data))

    def flush(self, lane: ReplicaLane) -> None:
        self.wait(lane.flush(ATTEMPT))

    def test_chunks_and_batches_are_in_their_place_once_they_are_flushed(
        self, tmp_path: Path
    ) -> None:
        body = bytes(range(251)) * (CHUNK_BYTES // 251)
        pieces = [Piece(f"{STAGED}/a/one", 0, 4), Piece(f"{STAGED}/two", 4, 0)]
        with self.opened(tmp_path / "disk") as lane:
            self.send(lane, Message.of_chunk(f"{STAGED}/large", 5, len(body)), body)
            self.send(lane, Message.of_batch(pieces), b"one!")
            self.send(lane, Message.of_chunk(f"{STAGED}/large", 0, 5), b"start")
            self.flush(lane)
            found = tmp_path / "disk" / STAGED
            assert (found / "large").read_bytes() == b"start" + body
            assert [(found / name).read_bytes() for name in ("a/one", "two")] == [b"one!", b""]

    def test_what_was_sent_may_change_before_it_is_flushed(self, tmp_path: Path) -> None:
        body = bytearray(b"0123456789" * 100_000)
        with self.opened(tmp_path / "disk") as lane:
            sent = lane.send(ATTEMPT, Message.of_chunk(f"{STAGED}/file", 0, len(body)), body)
            copy, body[:] = bytes(body), bytes(len(body))
            self.wait(sent)
            self.flush(lane)
            assert (tmp_path / "disk" / STAGED / "file").read_bytes() == copy

    def test_what_does_not_belong_there_is_told_to_who_sent_it(self, tmp_path: Path) -> None:
        with self.opened(tmp_path / "disk") as lane:
            with pytest.raises(PathRefusedError):
                self.send(lane, Message.of_chunk(f"{STAGED}/../seal.json", 0, 4), b"1234")
                self.flush(lane)
            self.send(lane, Message.of_chunk(f"{STAGED}/file", 0, 4), b"1234")
            self.flush(lane)
            assert (tmp_path / "disk" / STAGED / "file").read_bytes() == b"1234"
            assert not list((tmp_path / "disk").rglob("seal.json"))


class TransportLaneContract(LaneContract):
    """Both sides are in this process."""

    @abstractmethod
    def make_transport(self) -> Transport:
        """The same for both sides."""

    @contextmanager
    def opened(self, root: Path) -> Iterator[ReplicaLane]:
        transport, slots = self.make_transport(), EqualSlots(root.parent)
        intake = Intake(slots, replicas_at(root))

        def flush(attempt: str, by: str) -> None:
            assert by == transport.name
            intake.flush(attempt, WAIT_S)

        try:
            with transport.serve(intake, "127.0.0.1") as server:
                no_other = ObjectStoreLane(None)  # without Ray it could not send
                lane = TransportLane(transport, server.address, flush, no_other, WAIT_S)
                yield lane
                lane.close()
        finally:
            intake.close()
            slots.close()
