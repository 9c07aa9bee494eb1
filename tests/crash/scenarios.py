"""Small stories over a committer. Each is crashed at every one of its changes of the store."""

from __future__ import annotations

from collections.abc import Callable

from tests.crash.ledger import Contents
from tests.crash.run import Run

C0, C1 = "trial_a/checkpoint_000000", "trial_a/checkpoint_000001"
SENT = "trial_z/checkpoint_000000"

ONE: Contents = {
    "model.bin": b"the weights of the model, first try" * 2,
    "empty": b"",
    "meta/config.json": b'{"layers": 2}',
    "meta/deep/more": b"more",
    "nothing here": None,
}
# Some names of ONE, with the same lengths: where TWO is taken for ONE, only bytes tell.
TWO: Contents = {
    "model.bin": b"THE WEIGHTS OF THE MODEL, SECOND ..."[:35] * 2,
    "empty": b"",
    "meta/config.json": b'{"layers": 3}',
}
# All names of ONE, and its lengths.
LIKE_ONE: Contents = ONE | TWO | {"meta/deep/more": b"MORE"}
OTHER: Contents = {"part-00.bin": b"a file of another name", "meta/deep/more": b"MORE"}
RANK_0: Contents = {"rank0.bin": b"zero" * 5, "shared/same.bin": b"same bytes", "only0": None}
RANK_1: Contents = {"rank1/rank1.bin": b"one" * 7, "shared/same.bin": b"same bytes", "only1": None}


def publish_one(run: Run) -> None:
    run.publish(C0, ONE)


def seal_again_with_more(run: Run) -> None:
    run.stage(C0, ONE, first_seal=["model.bin"])
    run.place(C0, ONE)
    run.record(C0)


def two_ranks(run: Run) -> None:
    run.stage(C0, RANK_0, rank=0)
    run.stage(C0, RANK_1, rank=1)
    run.place(C0, RANK_0 | RANK_1)
    run.record(C0)


def second_rank_brings_only_a_directory(run: Run) -> None:
    run.stage(C0, RANK_0, rank=0)
    run.stage(C0, {"shared/same.bin": b"same bytes", "only1": None}, rank=1)
    run.place(C0, RANK_0 | {"only1": None})
    run.record(C0)


def place_again_with_a_shorter_intent(run: Run) -> None:
    run.publish(C0, OTHER)
    run.stage(C0, ONE)
    run.place_in_vain(C0, ONE)
    run.place(C0, ONE)
    run.record(C0)


def replace_published(run: Run) -> None:
    run.publish(C0, ONE)
    run.publish(C0, TWO)


def replace_before_it_is_recorded(run: Run) -> None:
    run.publish(C0, ONE)
    run.stage(C0, TWO)
    run.place(C0, TWO)
    run.publish(C0, ONE)


def retry_with_other_names(run: Run) -> None:
    run.do(lambda: run.write(C0, {"unsealed.bin": b"never finished"}))
    run.stage(C0, ONE)
    run.publish(C0, OTHER)


def retire_after_state(run: Run) -> None:
    run.publish(C0, ONE)
    run.state(C0)
    run.publish(C1, TWO)
    run.state(C0, C1)
    run.state(C1)
    run.retire(C0)


def use_a_name_again(run: Run) -> None:
    run.publish(C0, ONE)
    run.publish(C0, TWO)
    run.retire(C0)
    run.publish(C0, ONE)


def use_an_unrecorded_name_again(run: Run) -> None:
    run.publish(C0, ONE)
    run.stage(C0, TWO)
    run.place(C0, TWO)
    run.retire(C0)
    run.publish(C0, ONE)


def use_an_unrecorded_name_again_for_what_looks_the_same(run: Run) -> None:
    run.stage(C0, LIKE_ONE)
    run.place(C0, LIKE_ONE)
    run.retire(C0)
    run.publish(C0, ONE)


def empty_checkpoint(run: Run) -> None:
    run.stage(C0, {})
    run.place(C0, {})
    run.retire(C0)
    run.publish(C0, {"only a directory": None})


def deleted_by_hand(run: Run) -> None:
    run.publish(C0, ONE)
    run.lose_by_hand(C0)
    run.recover()
    run.publish(C0, TWO)


def deleted_by_hand_before_it_is_recorded(run: Run) -> None:
    run.publish(C0, ONE)
    run.stage(C0, TWO)
    run.place(C0, TWO)
    run.lose_by_hand(C0)
    run.recover()
    run.publish(C0, ONE)


def two_in_flight(run: Run) -> None:
    run.stage(C0, ONE)
    run.stage(C1, TWO)
    run.place(C0, ONE)
    run.place(C1, TWO)
    run.record(C1)
    run.log("trial_a/result.json", b'{"step": 1}\n')
    run.record(C0)
    run.state(C0, C1)


def a_log_makes_the_directory_of_its_trial(run: Run) -> None:
    run.sent_behind(SENT, ONE)
    run.log("trial_z/result.json", b'{"step": 1}\n')
    run.place(SENT, ONE)
    run.record(SENT)


def ends_before_all_is_recorded(run: Run) -> None:
    run.publish(C0, ONE)
    run.stage(C1, TWO)
    run.place(C1, TWO)
    run.end()


def ranks_sent_behind_a_dead_driver(run: Run) -> None:
    run.publish(C0, ONE)
    run.sent_behind(SENT, RANK_0, RANK_1)
    run.recover()
    run.ledger.record_returned(SENT, run.ledger.wholes[SENT][0])


SCENARIOS: dict[str, Callable[[Run], None]] = {
    story.__name__: story
    for story in (
        publish_one, seal_again_with_more, two_ranks, second_rank_brings_only_a_directory,
        place_again_with_a_shorter_intent, replace_published, replace_before_it_is_recorded,
        retry_with_other_names, retire_after_state, use_a_name_again,
        use_an_unrecorded_name_again, use_an_unrecorded_name_again_for_what_looks_the_same,
        empty_checkpoint,
        deleted_by_hand, deleted_by_hand_before_it_is_recorded, two_in_flight,
        a_log_makes_the_directory_of_its_trial,
        ends_before_all_is_recorded, ranks_sent_behind_a_dead_driver,
    )
}  # fmt: skip
