"""Small stories over a committer on a bucket. Each is crashed at every one of its changes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from tests.crash.scenarios import C0, C1, ONE, OTHER, RANK_0, RANK_1, SENT, TWO
from tests.crash_buckets.run import Run
from tune_sync.errors import NotWholeError
from tune_sync.homes.bucket.aside import aside_key
from tune_sync.homes.bucket.staging import RETIRED, mark_key
from tune_sync.layout import manifest_key


def publish_one(run: Run) -> None:
    run.publish(C0, ONE)


def seal_again_with_more(run: Run) -> None:
    attempt = run.stage(C0, ONE, first_seal=["model.bin"])
    run.place(C0, ONE, [attempt])
    run.record(C0)


def two_ranks(run: Run) -> None:
    parts = [run.stage(C0, RANK_0, rank=0), run.stage(C0, RANK_1, rank=1)]
    run.place(C0, RANK_0 | RANK_1, parts)
    run.record(C0)


def second_rank_brings_only_a_directory(run: Run) -> None:
    same = {"shared/same.bin": b"same bytes", "only1": None}
    parts = [run.stage(C0, RANK_0, rank=0), run.stage(C0, same, rank=1)]
    run.place(C0, RANK_0 | {"only1": None}, parts)
    run.record(C0)


def ranks_disagree(run: Run) -> None:
    """All ranks write to one key: rank 0 wins it; without conditional puts, who comes last."""
    parts = [run.stage(C0, ONE, rank=0), run.stage(C0, TWO, rank=1)]
    run.place(C0, TWO | ONE if run.bucket.capabilities.conditional_put else ONE | TWO, parts)
    run.record(C0)


def ranks_disagree_and_the_lowest_comes_last(run: Run) -> None:
    parts = [run.stage(C0, TWO, rank=1), run.stage(C0, ONE, rank=0)]
    run.place(C0, TWO | ONE, parts)
    run.record(C0)


def retry_with_other_names(run: Run) -> None:
    run.do(lambda: run.write(C0, {"unsealed.bin": b"never finished"}))
    run.stage(C0, ONE)
    run.publish(C0, OTHER)


def retry_with_the_same_names(run: Run) -> None:
    run.stage(C0, ONE)
    attempt = run.stage(C0, ONE | TWO)
    run.place(C0, ONE | TWO, [attempt])
    run.record(C0)


def given_up_and_tried_again(run: Run) -> None:
    attempt = run.stage(C0, ONE)
    run.do(lambda: run.committer.discard_attempt(C0, attempt))
    run.publish(C0, OTHER)
    attempt = run.stage(C1, TWO)
    run.do(lambda: run.committer.discard_attempt(C1, attempt))


def placed_again_before_it_is_recorded(run: Run) -> None:
    first = run.stage(C0, ONE)
    run.place(C0, ONE, [first])
    second = run.stage(C0, ONE | TWO)
    run.place(C0, ONE | TWO, [second])
    run.record(C0)


def record_twice(run: Run) -> None:
    run.publish(C0, ONE)
    run.record(C0)


def retire_after_state(run: Run) -> None:
    run.publish(C0, ONE)
    run.state(C0)
    run.publish(C1, TWO)
    run.state(C0, C1)
    run.state(C1)
    run.retire(C0)


def use_a_name_again(run: Run) -> None:
    run.publish(C0, ONE)
    run.retire(C0)
    run.publish(C0, OTHER)


def retire_what_is_not_recorded(run: Run) -> None:
    run.place(C0, ONE, [run.stage(C0, ONE)])
    run.retire(C0)
    run.publish(C0, TWO)


def use_a_name_whose_delete_was_cut_off(run: Run) -> None:
    run.publish(C0, ONE)
    run.ledger.retire_begins(C0)
    run.do(lambda: run.bucket.put(mark_key(C0, "earlier delete", RETIRED), b"{}"))
    run.do(lambda: run.bucket.delete([manifest_key(C0)]))
    run.ledger.retire_returned(C0)
    run.publish(C0, OTHER)


def empty_checkpoint(run: Run) -> None:
    run.publish(C0, {})
    run.retire(C0)
    run.publish(C0, {"only a directory": None})


def deleted_by_hand(run: Run) -> None:
    run.publish(C0, ONE)
    run.lose_by_hand(C0)
    run.recover()
    run.publish(C0, TWO)


def cannot_be_published_and_is_left_out(run: Run) -> None:
    """Its objects are gone before it is recorded: state goes on without it, and Ray deletes it."""
    run.place(C0, ONE, [run.stage(C0, ONE)])
    run.lose_by_hand(C0)

    def refuse() -> None:
        with suppress(NotWholeError):  # a second try at its files may lie aside, and count
            run.committer.record(run.placed[C0])

    run.do(refuse)
    run.publish(C1, TWO)
    run.state(C1)
    run.retire(C0)


def two_in_flight(run: Run) -> None:
    first, second = run.stage(C0, ONE), run.stage(C1, TWO)
    run.place(C0, ONE, [first])
    run.place(C1, TWO, [second])
    run.record(C1)
    run.record(C0)
    run.state(C0, C1)


def taken_by_a_driver_that_says_so_later(run: Run) -> None:
    run.acknowledge(C0, ONE)
    run.acknowledge(C1, TWO)
    run.record(C0)
    run.record(C1)


def a_later_try_is_taken(run: Run) -> None:
    run.stage(C0, ONE, ranks_count=1)
    run.acknowledge(C0, ONE | OTHER)
    run.record(C0)


def sealed_again_after_the_delete(run: Run) -> None:
    """A writer that nobody knows of any more comes late with what was deleted meanwhile."""
    run.acknowledge(C0, ONE)
    run.record(C0)
    run.acknowledge(C1, TWO)
    run.record(C1)
    run.retire(C0)

    def come_late() -> None:
        attempt, etags = run.write(C0, ONE)
        run.seal(C0, attempt, ONE, 0, etags, 1)

    run.do(come_late)


def complete_and_retired(run: Run) -> None:
    for contents in (ONE, {"only a directory": None}):
        run.acknowledge(C0, contents)
        run.retire(C0)


def ends_before_all_is_recorded(run: Run) -> None:
    run.acknowledge(C0, ONE)
    parts = [run.stage(C1, RANK_0, rank=0), run.stage(C1, RANK_1, rank=1)]
    run.place(C1, RANK_0 | RANK_1, parts)
    run.end()


def ranks_sent_behind_a_dead_driver(run: Run) -> None:
    run.publish(C0, ONE)
    run.sent_behind(SENT, RANK_0, RANK_1)
    run.recover()
    run.ledger.record_returned(SENT, run.ledger.wholes[SENT][0])


def an_earlier_large_file_comes_last(run: Run) -> None:
    """Of two whole tries the later one's large file, put without condition, is replaced again."""
    earlier, later = ({"large": b"large" + n, "x": b"x" + n} for n in (b"1", b"2"))
    run.stage(C0, earlier, ranks_count=1)
    run.ledger.place_begins(C0, later)

    def replace_large() -> None:
        attempt, etags = run.write(C0, later)
        etags["large"] = run.bucket.put(f"{C0}/large", later["large"])
        run.bucket.delete([aside_key(C0, attempt, "large")])
        run.seal(C0, attempt, later, 0, etags, 1)

    run.do(replace_large)
    run.do(lambda: run.bucket.put(f"{C0}/large", earlier["large"]))
    if run.bucket.capabilities.conditional_put:  # else "x" is the later one's
        run.ledger.acknowledged.add(C0)


SCENARIOS: dict[str, Callable[[Run], None]] = {
    story.__name__: story
    for story in (
        publish_one, seal_again_with_more, two_ranks, second_rank_brings_only_a_directory,
        ranks_disagree, ranks_disagree_and_the_lowest_comes_last, retry_with_other_names,
        retry_with_the_same_names, given_up_and_tried_again, placed_again_before_it_is_recorded,
        record_twice,
        retire_after_state, use_a_name_again, retire_what_is_not_recorded,
        use_a_name_whose_delete_was_cut_off, empty_checkpoint,
        deleted_by_hand, cannot_be_published_and_is_left_out, two_in_flight,
        taken_by_a_driver_that_says_so_later, a_later_try_is_taken,
        sealed_again_after_the_delete, complete_and_retired, ends_before_all_is_recorded,
        ranks_sent_behind_a_dead_driver, an_earlier_large_file_comes_last,
    )
}  # fmt: skip
