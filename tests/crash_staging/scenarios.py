"""Small stories of a node that stages. Each is crashed at every one of its changes of files."""

from __future__ import annotations

from collections.abc import Callable

from tests.crash.scenarios import C0, C1, ONE, OTHER, RANK_0, RANK_1, TWO
from tests.crash_staging.run import Run


def streamed(run: Run) -> None:
    run.report(C0, ONE)
    run.start_agent()
    run.turns()
    run.report(C1, OTHER)
    run.turns()
    run.end()


def handed_over(run: Run) -> None:
    run.start_agent()
    run.give(C0, ONE, links={"meta/again": "model.bin"})
    run.start_agent()
    run.turns()
    run.end()


def found_by_another_agent(run: Run) -> None:
    run.report(C0, ONE)
    run.give(C1, TWO)
    run.start_agent()
    run.turn()
    run.start_agent()
    run.turns()
    run.end()


def two_ranks(run: Run) -> None:
    run.start_agent()
    run.report(C0, RANK_0, rank=0, ranks_count=2)
    run.turn()
    run.report(C0, RANK_1, rank=1, ranks_count=2)
    run.turns()
    run.end()


def no_answer_at_first(run: Run) -> None:
    run.start_agent()
    run.refusals_count = 2
    run.report(C0, ONE)
    run.turns()
    run.end()


def tried_again(run: Run) -> None:
    run.start_agent()
    run.begin(C0, OTHER)
    run.another_trial()
    run.give(C0, ONE)
    run.turns()
    run.end()


def alone(run: Run) -> None:
    run.give(C0, ONE)
    run.start_agent()
    run.report(C1, OTHER)
    run.is_alone = True
    run.go_on_alone()


def replicated(run: Run) -> None:
    run.start_peer()
    run.report(C0, ONE)
    run.give(C1, OTHER, links={"again": "part-00.bin"})


def answers_lost(run: Run) -> None:
    run.start_agent()
    run.unanswered = {"seal": True}
    run.report(C0, ONE)
    run.turns()
    run.unanswered = {"seal": True, "discard_attempt": False, "record": True}
    run.report(C1, OTHER)
    run.turns()
    assert not run.unanswered
    run.end()


def driver_killed(run: Run) -> None:
    run.drives_here = run.is_alone = True
    run.start_agent()
    run.report(C0, ONE)
    run.state(C0)
    run.turns()
    run.report(C1, OTHER)
    run.state(C0, C1)
    run.backlog.doom(C0)
    run.turn()
    run.state(C1)
    run.turn()
    run.state(C1)
    run.turns()
    assert run.ledger.retired
    run.end()


SCENARIOS: dict[str, Callable[[Run], None]] = {
    story.__name__: story
    for story in (
        streamed, handed_over, found_by_another_agent, two_ranks, no_answer_at_first, tried_again,
        alone, replicated, answers_lost, driver_killed,
    )
}  # fmt: skip
