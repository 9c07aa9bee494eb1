"""What processes of a node read where it was brought, and what they read once it has gone."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_brought import BODY, THIRD, Node, Store, assert_whole, node, store
from tests.unit.test_memory_tier import Node as Staging
from tests.unit.test_node_sender import FIRST, SECOND, TIMEOUT_S, Shaky, report
from tune_sync.behind.node_copies import CopyHere, NodeCopies
from tune_sync.behind.node_disk import NodeDisk
from tune_sync.behind.node_sender import NodeSender
from tune_sync.behind.staged_copy import StagedCopies
from tune_sync.behind.staging_home import StagingHome
from tune_sync.errors import StoreUnreachableError
from tune_sync.homes.store import Info

pytestmark = pytest.mark.in_shared_memory

__all__ = ["node", "store"]  # fixtures


class Brings:
    """Is asked for no more than whole checkpoints."""

    def whole(self, checkpoint: str) -> None:
        assert checkpoint == SECOND
        return

    def here(self, checkpoint: str) -> None:
        raise AssertionError("nothing that the home node has was brought")


def test_a_directory_inside_of_a_checkpoint_is_not_waited_for(tmp_path: Path) -> None:
    home = Shaky(tmp_path / "home")
    upload = report(home, SECOND)
    home.publish(SECOND, False, [upload.attempt])
    node = Staging(tmp_path, home, brought=Brings(), timeout_s=0.0)
    for inside in (f"{SECOND}/a", f"{FIRST}/model", SECOND):
        with node.staging.held(inside) as found:
            assert found is None
    node.agent.end()


class Bringing:
    """What a process of a node sees of it."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def whole(self, checkpoint: str) -> CopyHere | None:
        return self._node.whole(checkpoint) if self._node.brought.bring(checkpoint) else None

    def here(self, checkpoint: str) -> CopyHere | None:
        return self._node.whole(checkpoint)


def test_who_opens_files_reads_what_the_home_node_had_from_this_node(
    tmp_path: Path, store: Store, node: Callable[[str], Node]
) -> None:
    report(NodeDisk(tmp_path / "replicas"), THIRD, BODY)
    here = node("one")
    agent = NodeSender(tmp_path / "third", lambda: store, 1 << 26)
    reader = StagingHome(
        store, tmp_path / "third", agent, "node",
        far=here.replicas, brought=Bringing(here), timeout_s=20.0,
    )  # fmt: skip
    found = {i.key: i.size_bytes for i in reader.list(THIRD, True) if not i.is_dir}
    assert found == {f"{THIRD}/a/one": len(BODY), f"{THIRD}/two": len(BODY)}
    (tmp_path / "replicas").rename(tmp_path / "away")
    assert reader.read(f"{THIRD}/two", 0, len(BODY)) == BODY
    (tmp_path / "away").rename(tmp_path / "replicas")
    assert here.brought.free()  # somebody else needs the room
    assert reader.read(f"{THIRD}/two", 1, 2) == BODY[1:3]
    assert reader.info(f"{THIRD}/two") is not None
    assert here.whole(THIRD) is None
    assert here.brought.bring(THIRD)
    upload = report(store, THIRD, BODY)
    store.publish(THIRD, False, [upload.attempt])
    shutil.rmtree(tmp_path / "replicas")
    assert here.brought.free()
    assert reader.read_many([f"{THIRD}/two"]) == [BODY]
    assert len(reader.list(THIRD, True)) > 2
    agent.end()


def test_a_copy_that_goes_while_it_is_listed_is_not_a_smaller_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = NodeCopies(tmp_path / "staged")
    upload = report(NodeDisk(tmp_path / "staged"), FIRST, BODY)
    copy = copies.whole(FIRST)
    assert copy is not None
    listed = StagedCopies.list

    def list_late(self: StagedCopies, where: str, *args: Any) -> list[Info]:
        if copies.whole(FIRST) is not None:
            assert copies.remove(FIRST, upload.attempt)
        return listed(self, where, *args)

    monkeypatch.setattr(StagedCopies, "list", list_late)
    with pytest.raises(FileNotFoundError, match="gone"):
        copy.list(FIRST, True)
    with pytest.raises(FileNotFoundError, match="gone"):
        copy.info(f"{FIRST}/two")


@pytest.mark.parametrize("is_silent", [True, False])
def test_while_the_store_does_not_answer_the_home_nodes_replica_is_brought(
    tmp_path: Path, store: Store, node: Callable[[str], Node], monkeypatch: pytest.MonkeyPatch,
    is_silent: bool,
) -> None:  # fmt: skip
    answers = threading.Event()

    def asked(*_: object) -> Any:
        if is_silent:
            answers.wait(TIMEOUT_S)
        raise StoreUnreachableError("it does not answer")

    report(NodeDisk(tmp_path / "replicas"), THIRD, BODY)
    here = node("one")
    monkeypatch.setattr(here.brought, "_answer_s", 0.1)
    for name in ("info", "read"):
        monkeypatch.setattr(store, name, asked)
    assert here.brought.bring(THIRD)
    assert_whole(here, THIRD)
    assert not here.brought.bring(FIRST), "nobody has a replica"
    answers.set()
