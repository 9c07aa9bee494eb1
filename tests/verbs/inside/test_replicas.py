"""Staged checkpoints in another process's staging, by RDMA: its door, intake and lanes. No Ray."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.staged import sealed
from tests.verbs.inside.replica_node import Node, ReplicaHome
from tests.verbs.inside.sides import content, cut_link, mend_link
from tests.verbs.inside.test_checkpoint import PACKET_BYTES, packets, registered_count
from tune_sync.behind.replica_intake import DATA_BYTES, SLOTS_COUNT
from tune_sync.behind.replica_lane import ReplicaLane
from tune_sync.behind.staged_copy import StagedCopies
from tune_sync.behind.staged_send import send_attempt
from tune_sync.errors import StoreError, TransportMissingError
from tune_sync.homes.commit import Committer
from tune_sync.homes.store import LocalStore
from tune_sync.manifest import Seal
from tune_sync.spec import Options

AUTO = Options(transport="auto")
REQUIRED = replace(AUTO, transport="rdma", transport_required=True)


@pytest.fixture
def node() -> Iterator[Node]:
    made = Node(AUTO)
    yield made
    made.close()


class Staged:
    """Checkpoints in shared memory of this process's node."""

    def __init__(self, root: Path) -> None:
        self._copies = StagedCopies(root)

    def make(self, checkpoint: str, files: dict[str, bytes]) -> Seal:
        attempt = sealed(Committer(LocalStore(self._copies.root)), files, checkpoint, 1)
        seal = self._copies.seal(checkpoint, attempt)
        assert seal is not None
        return seal

    def replicate(self, node: Node, lane: ReplicaLane, checkpoint: str, seal: Seal) -> None:
        send_attempt(self._copies, checkpoint, seal, ReplicaHome(node, lane, seal))  # type: ignore[arg-type]


@pytest.fixture
def staged() -> Iterator[Staged]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as root:
        yield Staged(Path(root))


def tensors_and_small_files(seed: int) -> dict[str, bytes]:
    small = {f"rank_{n % 4}/{n}": bytes(content(n * 97, seed + n)) for n in range(120)}
    return {**small, "empty": b"", "large": bytes(content(DATA_BYTES + 4099, seed))}


def test_checkpoints_arrive_whole_by_rdma_and_memory_is_registered_once(
    node: Node, staged: Staged
) -> None:
    lane = node.choose()
    assert lane.name == "rdma"
    before, counts = packets(), []
    for number in range(3):
        checkpoint, files = f"t{number}/checkpoint_000000", tensors_and_small_files(number)
        seal = staged.make(checkpoint, files)
        staged.replicate(node, lane, checkpoint, seal)
        assert node.files(checkpoint) == files
        counts.append(registered_count())
    size_bytes = 3 * sum(map(len, files.values()))
    assert packets() - before >= size_bytes // PACKET_BYTES, "bytes took another way"
    assert {by for by, _ in node.came} == {"rdma"}
    assert sum(came_bytes for _, came_bytes in node.came) >= size_bytes
    # A message here; and there all slots, as they take turns.
    assert counts[-1] <= 1 + SLOTS_COUNT
    lane.close()


def test_nothing_more_is_registered_once_all_slots_are(node: Node, staged: Staged) -> None:
    lane, counts = node.choose(), []
    for number in range(2 * SLOTS_COUNT):
        files = {"file": bytes(content(2_000_000, number))}
        seal = staged.make("t/checkpoint_000000", files)
        staged.replicate(node, lane, "t/checkpoint_000000", seal)
        counts.append(registered_count())
    assert counts[-1] == counts[SLOTS_COUNT] <= 1 + SLOTS_COUNT
    lane.close()


@pytest.mark.usefixtures("impatient", "mended")
def test_a_link_that_fails_is_told_and_tcp_is_taken_unless_rdma_is_required(
    node: Node, staged: Staged, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint, files = "t/checkpoint_000000", tensors_and_small_files(9)
    seal = staged.make(checkpoint, files)
    lane = node.choose()
    assert lane.name == "rdma"
    cut_link()
    with pytest.raises(StoreError):
        staged.replicate(node, lane, checkpoint, seal)
    assert node.files(checkpoint) is None
    lane.close()

    with pytest.raises(TransportMissingError, match=r"'rdma' is required.*here: link.*DOWN"):
        node.choose(REQUIRED)
    caplog.clear()
    before = packets()
    lane = node.choose(before="rdma")
    assert lane.name == "tcp"
    (warning,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert "'tcp' is used" in warning.getMessage() and "rdma, here: link" in warning.getMessage()
    staged.replicate(node, lane, checkpoint, seal)
    assert node.files(checkpoint) == files
    assert node.came[-1][0] == "tcp" and packets() - before < 100
    lane.close()

    mend_link()
    lane = node.choose()
    assert lane.name == "rdma", "it is used again"
    lane.close()


def test_who_asks_for_tcp_uses_no_device(node: Node, staged: Staged) -> None:
    lane, before = node.choose(replace(AUTO, transport="tcp")), packets()
    files = tensors_and_small_files(4)
    staged.replicate(node, lane, "t/checkpoint_000000", staged.make("t/checkpoint_000000", files))
    assert node.files("t/checkpoint_000000") == files
    assert lane.name == "tcp" and packets() - before < 100
    lane.close()
