"""A run that ends, or dies, before all is stored leaves the rest to its nodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import pytest

from tests.manifests import manifests_of
from tests.unit.test_node_sender import report
from tune_sync.errors import LeaseLostError, NotStoredError
from tune_sync.homes.home import LocalHome
from tune_sync.homes.lease import Holder, live_holder, read_holder
from tune_sync.layout import LEASE_KEY, STAGING_DIR
from tune_sync.run import Run
from tune_sync.sending.orders import News, Orders
from tune_sync.tidying import cleanup

FIRST, SECOND, THIRD = (f"trial/checkpoint_00000{n}" for n in range(3))
STATE = "experiment_state-2026.json"
SHORT_S, TIMEOUT_S = 0.3, 10.0


class Silent:
    """Nodes that are there, and do not answer."""

    def exchange(
        self, nodes: Collection[str], orders: Callable[[str], Orders]
    ) -> dict[str, News | Exception]:
        return {node: TimeoutError(node) for node in nodes}

    def close(self, nodes: Collection[str]) -> None:
        pass

    def is_alive(self, node: str) -> bool:
        return True

    def tell_lost(self, lost: Mapping[str, str]) -> None:
        pass


class Sent(Silent):
    """A node that says of one attempt that it is at the destination."""

    def __init__(self, attempt: str, there: str) -> None:
        self.news = News(stored={attempt: there})

    def exchange(
        self, nodes: Collection[str], orders: Callable[[str], Orders]
    ) -> dict[str, News | Exception]:
        return dict.fromkeys(nodes, self.news)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "exp"


def start(root: Path, runs: list[Run], on_existing: str = "error") -> Run:
    runs.append(Run.open(root, on_existing, TIMEOUT_S, 1))
    return runs[-1]


def agent_of(run: Run) -> LocalHome:
    """The destination, as an agent of the run sees it."""
    return LocalHome(Path(run.where), run.owner)


def leave(root: Path, run: Run) -> None:
    """The lease of a run whose driver died elsewhere, long ago."""
    (root / LEASE_KEY).write_text(Holder(run.owner, "far", 12, "another", "3", 1.0).to_json())


def test_agents_go_on_after_the_end_and_a_restore_finds_what_they_sent(
    root: Path, runs: list[Run]
) -> None:
    run = start(root, runs)
    run.begun = True
    run.write_behind(Silent())
    report(agent_of(run), FIRST)
    run.publish(SECOND, False, [f"{'1' * 32}@node1"])
    with pytest.raises(NotStoredError, match=SECOND):
        run.flush(SHORT_S)
    run.close()
    assert live_holder(root) is None
    report(agent_of(run), SECOND)
    again = start(root, runs, "resume")
    assert {m.checkpoint for m in manifests_of(again.home.committer)} == {FIRST, SECOND}
    with pytest.raises(LeaseLostError):
        report(agent_of(run), THIRD)


def test_a_run_whose_checkpoints_are_all_stored_gives_its_lease_back(
    root: Path, runs: list[Run]
) -> None:
    run = start(root, runs)
    run.begun = True
    run.write_behind(Silent())
    run.flush(TIMEOUT_S)
    run.close()
    assert read_holder(root / LEASE_KEY) is None


def test_what_was_sent_behind_a_dead_driver_is_published_unless_it_may_have_been_deleted(
    root: Path, runs: list[Run]
) -> None:
    dead = start(root, runs)
    home = agent_of(dead)
    report(home, SECOND)
    home.publish(SECOND, False, [attempt for _, attempt in home.committer.attempts("trial")])
    for checkpoint in (FIRST, THIRD):
        report(home, checkpoint)
    recovery = LocalHome(root).committer.recover()
    assert (recovery.completed, recovery.dropped) == ((THIRD,), (FIRST,))
    assert (root / THIRD / "two").read_bytes() == b"body"


def test_a_part_of_several_is_no_whole_checkpoint(root: Path, runs: list[Run]) -> None:
    home = agent_of(start(root, runs))
    report(home, FIRST, ranks_count=2)
    assert LocalHome(root).committer.recover().dropped == (FIRST,)


def test_a_shortened_one_is_not_published(root: Path, runs: list[Run]) -> None:
    home = agent_of(start(root, runs))
    report(home, FIRST)
    (file,) = (root / STAGING_DIR).rglob("two")
    file.write_bytes(b"bo")
    assert LocalHome(root).committer.recover().dropped == (FIRST,)


def test_at_the_end_of_a_run_only_what_was_placed_counts(root: Path, runs: list[Run]) -> None:
    run = start(root, runs)
    report(agent_of(run), FIRST)
    run.close()
    assert manifests_of(LocalHome(root).committer) == []


def test_parts_that_are_seen_too_late_to_be_published_stay_for_the_next_run(
    root: Path, runs: list[Run]
) -> None:
    run = start(root, runs)
    run.begun = True
    home, attempt = agent_of(run), "1" * 32
    run.write_behind(Sent(attempt, "2" * 32))
    run.publish(FIRST, False, [f"{attempt}@node1"])
    with pytest.raises(NotStoredError, match=FIRST):
        run.flush(TIMEOUT_S)
    report(home, FIRST)  # another node wrote it, and it shows only now
    run.close()
    (found,) = manifests_of(start(root, runs, "resume").home.committer)
    assert found.checkpoint == FIRST


def test_tidying_and_a_restore_that_fails_leave_the_dead_run_to_its_agents(
    root: Path, runs: list[Run]
) -> None:
    dead = start(root, runs)
    dead.begun = True
    dead.lease.release()
    leave(root, dead)
    cleanup(root)
    report(agent_of(dead), FIRST)
    (root / STATE).write_text("")
    with pytest.raises(Exception, match="not readable"):
        start(root, runs, "resume")
    report(agent_of(dead), SECOND)
    (root / STATE).write_text(json.dumps({"trial_data": []}))
    again = start(root, runs, "resume")
    assert {m.checkpoint for m in manifests_of(again.home.committer)} == {FIRST, SECOND}
