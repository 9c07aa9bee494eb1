"""Where neither memory nor the disk of a node has room, that is told as without memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.test_memory_tier import BODY, Node, home, make
from tests.unit.test_node_sender import FIRST, SECOND, Shaky, until
from tune_sync.behind.staging_home import StagingHome
from tune_sync.errors import SyncTimeoutError
from tune_sync.transfer.upload import Upload

__all__ = ["home", "make"]  # fixtures


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
    upload = Upload(other, "u/checkpoint_000000", 0)
    with upload.open("one") as stream:
        stream.write(BODY)
    upload.copied(1)
    assert upload.seal()
