"""Sends a staged attempt on to the destination, as an attempt there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from tune_sync import layout
from tune_sync.behind.staged_copy import StagedCopies
from tune_sync.errors import DamagedError
from tune_sync.homes.home import Home
from tune_sync.manifest import Seal
from tune_sync.transfer.upload import Upload


class GivenUpError(Exception):
    """Nobody needs it any more."""


def send_attempt(
    copies: StagedCopies, checkpoint: str, seal: Seal, home: Home,
    go_on: Callable[[int], bool] = lambda size_bytes: True,
) -> str:  # fmt: skip
    """Send an attempt; returns its id at the destination, where it is durable and sealed.

    Args:
        copies: Where it is staged.
        checkpoint: Its checkpoint.
        seal: What it holds.
        home: The destination.
        go_on: Asked before each file and chunk, with the bytes that are about to be sent.

    Raises:
        GivenUpError: `go_on` said no.
        DamagedError: What is on this node's disk is not what was staged.
        Exception: What the destination raises; nothing is sealed there, and it can be sent again.
    """
    upload = Upload(cast(Home, _Watched(home, go_on)), checkpoint, seal.rank)
    try:
        _send_files(copies, checkpoint, seal, upload, go_on)
        upload.send_batch()
        upload.flush()
        home.seal(checkpoint, replace(seal, attempt=upload.attempt))
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
            raise GivenUpError(key)
        self._home.write(key, offset_bytes, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._home, name)


def _send_files(
    copies: StagedCopies, checkpoint: str, seal: Seal, upload: Upload, go_on: Callable[[int], bool]
) -> None:
    data = layout.staged_key(checkpoint, seal.attempt)
    first: dict[tuple[int, int], str] = {}
    for file in seal.files:
        if not go_on(0):
            raise GivenUpError(checkpoint)
        source = copies.store.path(f"{data}/{file.path}")
        found = source.stat()
        same_as = ""
        if found.st_nlink > 1:  # hard links are sent once
            same_as = first.setdefault((found.st_dev, found.st_ino), file.path)
        upload.add_file(file.path, source, "" if same_as == file.path else same_as)
        if upload.entry(file.path) != file:
            raise DamagedError(
                f"{source} is not what was staged: this node's disk has damaged {checkpoint}"
            )
