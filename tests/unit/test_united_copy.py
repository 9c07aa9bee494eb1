"""What several ranks reported is read where all of it is staged, before it is stored."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.test_memory_tier import Node, home, make
from tests.unit.test_node_sender import FIRST, Shaky, report, until
from tune_sync.agents.replica_service import ReplicaService
from tune_sync.behind.node_copies import NodeCopies
from tune_sync.behind.node_disk import MAKING_DIR
from tune_sync.behind.replicas import Replicas
from tune_sync.behind.united_copy import whole_of
from tune_sync.errors import SyncTimeoutError
from tune_sync.sending.orders import Orders
from tune_sync.spec import Options
from tune_sync.transfer.upload import CheckpointUpload

__all__ = ["home", "make"]  # fixtures

pytestmark = pytest.mark.in_shared_memory

RANKS_COUNT = 3


def report_part(node: Node, rank: int, **files: bytes) -> CheckpointUpload:
    upload = CheckpointUpload(node.staging, FIRST, rank)
    upload.make_dir("empty")
    for name, body in {f"rank_{rank}/state": b"%d" % rank, **files}.items():
        with upload.open(name) as stream:
            stream.write(body)
    upload.copied(RANKS_COUNT)
    assert upload.seal()
    return upload


def tell(node: Node, *attempts: str, parts: list[str] | None = None) -> None:
    """What the driver says of what it took; returns once all digests are known here."""
    told = parts if parts is not None else list(attempts)
    node.agent.exchange(Orders(expected=attempts, parts=dict.fromkeys(attempts, told)))
    until(node.agent, lambda n: {*n.noted} >= {*attempts})
    until(node.agent, lambda n: all(i.is_confirmed for i in node.agent._queue.items()))


@pytest.fixture
def node(make: Callable[..., Node], home: Shaky) -> Node:
    home.is_up = False  # nothing is stored
    return make(timeout_s=-1.0)


@pytest.fixture
def attempts(node: Node) -> list[str]:
    return [report_part(node, rank).attempt for rank in range(RANKS_COUNT)]


FILES = {f"rank_{rank}/state": b"%d" % rank for rank in range(RANKS_COUNT)}


def test_all_parts_are_read_as_one_once_the_driver_has_told_of_them(
    node: Node, attempts: list[str]
) -> None:
    with pytest.raises(SyncTimeoutError):
        node.staging.info(FIRST)
    tell(node, *attempts)
    assert node.staging.info(FIRST) is not None
    listed = {i.key.removeprefix(f"{FIRST}/"): i for i in node.staging.list(FIRST, True)}
    assert {name for name, info in listed.items() if not info.is_dir} == {*FILES}
    assert {name for name, info in listed.items() if info.is_dir} == {
        "empty", *(f"rank_{rank}" for rank in range(RANKS_COUNT)),
    }  # fmt: skip
    assert [i.key for i in node.staging.list(f"{FIRST}/rank_1", False)] == [f"{FIRST}/rank_1/state"]
    assert {i.key for i in node.staging.list(FIRST, False) if i.is_dir} >= {f"{FIRST}/rank_1"}
    keys = [f"{FIRST}/{name}" for name in FILES]
    assert node.staging.read_many(keys) == [*FILES.values()]
    assert [node.staging.read(key, 0, 1) for key in keys] == [*FILES.values()]
    assert node.staging.info(f"{FIRST}/nothing") is None


def test_who_opens_it_gets_a_directory_of_the_files_themselves(
    node: Node, attempts: list[str]
) -> None:
    tell(node, *attempts)
    taken_bytes = node.budget.taken_bytes
    with node.staging.held(FIRST) as directory:
        assert directory is not None and node.memory in directory.parents
        found = {str(p.relative_to(directory)): p for p in directory.rglob("*") if p.is_file()}
        assert {name: path.read_bytes() for name, path in found.items()} == FILES
        assert {path.stat().st_nlink for path in found.values()} == {2}, "it was copied"
        assert (directory / "empty").is_dir()
        assert node.budget.taken_bytes == taken_bytes
        node.agent.exchange(Orders(dropped=attempts))
        assert node.budget.taken_bytes == taken_bytes, "it is read, and counts no more"
        assert {name: path.read_bytes() for name, path in found.items()} == FILES
    assert not any((node.memory / MAKING_DIR).iterdir())
    node.agent.exchange(Orders(dropped=attempts))
    with node.staging.held(FIRST) as directory:
        assert directory is None


def test_what_is_not_all_here_or_is_told_in_two_ways_is_not_read(
    node: Node, attempts: list[str]
) -> None:
    tell(node, *attempts, parts=[*attempts, "elsewhere"])
    with pytest.raises(SyncTimeoutError):
        node.staging.info(FIRST)
    again = [report_part(node, rank).attempt for rank in range(RANKS_COUNT)]
    tell(node, *again)
    assert node.staging.info(FIRST) is not None
    third = [report_part(node, rank).attempt for rank in range(RANKS_COUNT)]
    tell(node, *third)
    with pytest.raises(SyncTimeoutError):
        node.staging.info(FIRST)


def test_where_ranks_disagree_the_destination_decides(node: Node) -> None:
    parts = [report_part(node, rank, model=b"of %d" % rank).attempt for rank in range(2)]
    tell(node, *parts)
    with pytest.raises(SyncTimeoutError):
        node.staging.info(FIRST)


def test_another_try_that_is_published_is_read_instead(
    node: Node, attempts: list[str], home: Shaky
) -> None:
    tell(node, *attempts)
    home.is_up = True
    published = report(home, FIRST, b"another try")
    home.publish(FIRST, False, [published.attempt])
    assert node.staging.read(f"{FIRST}/two", 0, 99) == b"another try"
    with node.staging.held(FIRST) as directory:
        assert directory is None


def test_what_is_published_of_them_is_read_here(
    node: Node, attempts: list[str], home: Shaky
) -> None:
    tell(node, *attempts)
    home.is_up = True
    news = until(node.agent, lambda n: len(n.stored) == RANKS_COUNT)
    home.publish(FIRST, False, [news.stored[attempt] for attempt in attempts])
    with node.staging.held(FIRST) as directory:
        assert directory is not None
        assert (directory / "rank_2/state").read_bytes() == b"2"


def test_another_node_reads_them_from_the_home_nodes_agent(node: Node, attempts: list[str]) -> None:
    tell(node, *attempts)
    service = ReplicaService()
    service._take_replicas(
        Replicas(node.memory, None, lambda trial: False, lambda *_: True, lambda: True), Options()
    )
    assert service.ask_copy(FIRST, "info", FIRST) is not None
    _, data = service.read_copy(FIRST, f"{FIRST}/rank_1/state", 0, 1)
    assert bytes(data) == b"1"
    for elsewhere in ("t/other", f"{FIRST}2", "/etc/passwd", ""):
        for asked in ("info", "list"):
            with pytest.raises(FileNotFoundError):
                service.ask_copy(FIRST, asked, elsewhere, *([True] if asked == "list" else []))
    for elsewhere in ("t/other", f"{FIRST}/../other", f"{FIRST}/rank_1", FIRST, "/etc/passwd"):
        with pytest.raises(FileNotFoundError):
            service.read_copy(FIRST, elsewhere, 0, 1)


def test_one_that_goes_while_it_is_read_is_told(node: Node, attempts: list[str]) -> None:
    tell(node, *attempts)
    copies = NodeCopies(node.memory, node.disk)
    copy = whole_of(copies, FIRST)
    assert copy is not None
    copies.remove(FIRST, attempts[1])
    assert whole_of(copies, FIRST) is None
    for ask in (copy.info, lambda key: copy.list(key, True), lambda key: copy.read(f"{key}/x")):
        with pytest.raises(FileNotFoundError):
            ask(FIRST)
