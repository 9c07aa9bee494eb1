"""Bytes that were intact when a node sent them, and are damaged where they arrive."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.unit.test_node_sender import FIRST, report, staging, stored, until
from tune_sync import layout
from tune_sync.behind.node_sender import NodeSender
from tune_sync.behind.staged_send import TRIES_COUNT
from tune_sync.homes.digests import check_digest, digest_of
from tune_sync.homes.home import LocalHome, Piece


class Flipping(LocalHome):
    """A destination to which so many batches come with a bit flipped, and that sees it."""

    flips_count = 0

    def write_batch(self, pieces: Sequence[Piece], data: bytes | bytearray | memoryview) -> None:
        digest, arrived = digest_of(data), bytearray(data)
        if self.flips_count > 0:
            self.flips_count -= 1
            arrived[0] ^= 1
        check_digest("a batch", memoryview(arrived), digest)
        super().write_batch(pieces, arrived)


@pytest.mark.parametrize("flips_count", [1, TRIES_COUNT - 1, 1000])
def test_what_arrives_damaged_and_is_intact_here_is_sent_again_but_not_for_ever(
    tmp_path: Path, flips_count: int
) -> None:
    far = Flipping(tmp_path / "home")
    far.flips_count = flips_count
    sender = NodeSender(tmp_path / "node", lambda: far, 1 << 30, first_pause_s=0.01)
    try:
        upload = report(staging(tmp_path, far, sender), FIRST)
        news = until(sender, lambda n: bool(n.stored or n.failed))
        if flips_count < TRIES_COUNT:
            assert stored(far, news, upload, FIRST) == {"a/one": b"body", "two": b"body"}
        else:
            assert "intact on its node" in news.failed[upload.attempt]
            assert 1000 - far.flips_count == TRIES_COUNT
    finally:
        sender.end()


def test_what_arrives_damaged_is_not_sent_again_if_it_is_damaged_here_too(tmp_path: Path) -> None:
    far = Flipping(tmp_path / "home")
    far.flips_count = 1
    begin = far.begin

    def begin_and_damage(checkpoint: str) -> str:
        (file,) = (tmp_path / "node" / layout.STAGING_DIR).rglob("two")
        file.write_bytes(b"bady")
        return begin(checkpoint)

    far.begin = begin_and_damage  # type: ignore[method-assign]
    sender = NodeSender(tmp_path / "node", lambda: far, 1 << 30, first_pause_s=0.01)
    try:
        upload = report(staging(tmp_path, far, sender), FIRST)
        news = until(sender, lambda n: bool(n.failed))
        assert "this node's disk has damaged" in news.failed[upload.attempt]
    finally:
        sender.end()
