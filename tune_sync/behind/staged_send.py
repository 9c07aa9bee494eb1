"""Sends a staged attempt on to the destination, as an attempt there."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from tune_sync import layout
from tune_sync.behind.confirm import confirm
from tune_sync.behind.staged_copy import StagedCopies
from tune_sync.errors import DamagedError, StoreError
from tune_sync.homes.digests import digest_of_file
from tune_sync.homes.home import Home, Piece
from tune_sync.manifest import Seal
from tune_sync.transfer.upload import CheckpointUpload

logger = logging.getLogger("ray.tune_sync")

# How often an attempt is sent that arrives damaged. One flipped bit is gone the next time; memory
# that flips them all the time damages each of them.
TRIES_COUNT = 3


class NotNeededError(Exception):
    """Nobody needs it any more."""


class DamagedOnWayError(StoreError):
    """What is staged is as it was, and arrives damaged again and again."""


def send_attempt(
    copies: StagedCopies, checkpoint: str, seal: Seal, home: Home,
    go_on: Callable[[int], bool] = lambda size_bytes: True,
) -> str:  # fmt: skip
    """Send an attempt; returns its id at the destination, where it is durable and sealed.

    What arrives damaged, and is intact here, is sent again.

    Args:
        copies: Where it is staged.
        checkpoint: Its checkpoint.
        seal: What it holds; it is confirmed first, if it is not yet.
        home: The destination.
        go_on: Asked before each file and chunk, with the bytes that are about to be sent. Called
            as files are read, too, with 0.

    Raises:
        NotNeededError: `go_on` said no.
        DamagedError: What is on this node's disk is not what was staged.
        DamagedOnWayError: It is, and arrived damaged each time.
        Exception: What the destination raises; nothing is sealed there, and it can be sent again.
    """
    seal = confirm(copies, checkpoint, seal, lambda: go_on(0))
    for _ in range(TRIES_COUNT):
        try:
            return _send(copies, checkpoint, seal, home, go_on)
        except DamagedError as error:
            _check_here(copies, checkpoint, seal, go_on)
            logger.warning("%s: %s; it is intact on this node: sent again", checkpoint, error)
            damage = error
    raise DamagedOnWayError(
        f"{checkpoint} was sent {TRIES_COUNT} times and arrived damaged, though it is intact on "
        f"its node ({damage}); have the memory and the network of both ends looked at"
    ) from damage


def _send(
    copies: StagedCopies, checkpoint: str, seal: Seal, home: Home, go_on: Callable[[int], bool]
) -> str:
    upload = CheckpointUpload(cast(Home, _Watched(home, go_on)), checkpoint, seal.rank)
    try:
        _send_files(copies, checkpoint, seal, upload, go_on)
        upload.send_batch()
        upload.flush()
        parts = copies.parts(checkpoint, seal.attempt)
        there = replace(seal, attempt=upload.attempt, staged_as=seal.attempt, parts=parts)
        home.seal(checkpoint, there)
    except BaseException:
        upload.abort()
        raise
    return upload.attempt


class _Watched:
    """A home whose writes ask first."""

    def __init__(self, home: Home, go_on: Callable[[int], bool]) -> None:
        self._home = home
        self._go_on = go_on

    def write(self, key: str, offset_bytes: int, data: bytes | memoryview) -> None:
        if not self._go_on(len(data)):
            raise NotNeededError(key)
        self._home.write(key, offset_bytes, data)

    def write_batch(self, pieces: Sequence[Piece], data: bytes | bytearray | memoryview) -> None:
        if not self._go_on(len(data)):
            raise NotNeededError(pieces[0].key)
        self._home.write_batch(pieces, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._home, name)


def _send_files(
    copies: StagedCopies, checkpoint: str, seal: Seal, upload: CheckpointUpload,
    go_on: Callable[[int], bool],
) -> None:  # fmt: skip
    data = layout.staged_key(checkpoint, seal.attempt)
    first: dict[tuple[int, int], str] = {}
    for file in seal.files:
        if not go_on(0):
            raise NotNeededError(checkpoint)
        source = copies.store.path(f"{data}/{file.path}")
        found = source.stat()
        same_as = ""
        if found.st_nlink > 1:  # hard links are sent once
            same_as = first.setdefault((found.st_dev, found.st_ino), file.path)
        upload.add_file(file.path, source, "" if same_as == file.path else same_as)
        if upload.entry(file.path) != file:
            raise _damaged_here(source, checkpoint)


def _check_here(
    copies: StagedCopies, checkpoint: str, seal: Seal, go_on: Callable[[int], bool]
) -> None:
    """Raise DamagedError if what is staged has not the digests that it had."""
    data = layout.staged_key(checkpoint, seal.attempt)
    for file in seal.files:
        if not go_on(0):
            raise NotNeededError(checkpoint)
        source = copies.store.path(f"{data}/{file.path}")
        if digest_of_file(source, lambda: go_on(0)) != file.digest:
            raise _damaged_here(source, checkpoint)


def _damaged_here(source: Path, checkpoint: str) -> DamagedError:
    return DamagedError(
        f"{source} is not what was staged: this node's disk has damaged {checkpoint}"
    )
