"""Bytes of replicas as they come by a transport: each message over a shelf, into its place."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any, cast

from tests.unit.replica_peer import Direct
from tune_sync.behind.replica_intake import LENGTH_BYTES, EqualSlots, Intake
from tune_sync.behind.replica_message import Message
from tune_sync.behind.replicas import Replicas, Room
from tune_sync.homes.home import Piece
from tune_sync.manifest import Seal

FLUSH_TIMEOUT_S = 60.0


class ByIntake(Direct):
    """See `Direct`. Each message is in its place before the next one comes."""

    def __init__(self, replicas: Replicas, seal: Seal, room: Room) -> None:
        super().__init__(replicas, seal, room)
        self._intake = Intake(cast(EqualSlots, _Pool()), replicas)
        self._numbers = itertools.count()

    def write(self, key: str, offset_bytes: int, data: bytes) -> None:
        self._put(Message.of_chunk(key, offset_bytes, len(data)), data)

    def write_batch(self, pieces: list[Piece], data: bytes) -> None:
        self._put(Message.of_batch(pieces), data)

    def _put(self, message: Message, data: bytes) -> None:
        said = message.to_json()
        body = len(said).to_bytes(LENGTH_BYTES, "big") + said + bytes(data)
        handle = self._intake.reserve(f"{self._attempt}/{next(self._numbers)}", len(body)).handle
        with self._intake.writing(handle, 0, len(body)) as view:
            view[:] = body
        self._intake.publish(handle)
        self._intake.flush(self._attempt, FLUSH_TIMEOUT_S)


class _Pool:
    """Memory that dies with its process, and is nobody else's."""

    def take(self, need_bytes: int, *, wait_s: float) -> Any:
        return SimpleNamespace(memory=bytearray(need_bytes))

    def give_back(self, slot: Any) -> None: ...

    def keep(self, slot: Any) -> None: ...
