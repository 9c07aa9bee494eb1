"""What a restore makes of published checkpoints that the saved state does not name."""

from __future__ import annotations

import pytest

from tune_sync.homes.saved_state import TrialNames
from tune_sync.restoring.adopt import Plan, Record, find_directory, plan


def record(
    index: int, kept: tuple[int, ...], *,
    lost: bool = False, few: bool = False, ended: bool = False, clone: bool = False,
) -> Record:  # fmt: skip
    return Record(index, frozenset(kept), lost, few, ended, clone)


@pytest.mark.parametrize(
    ("known", "published", "expected"),
    [
        # The state is up to date.
        (record(-1, ()), (), Plan()),
        (record(2, (0, 1, 2)), (0, 1, 2), Plan()),
        # Later ones are adopted, oldest first; also by a trial that had none.
        (record(-1, ()), (1, 0, 2), Plan(adopt=(0, 1, 2))),
        (record(1, (0, 1)), (0, 1, 3, 2), Plan(adopt=(2, 3))),
        (record(1, (0, 1)), (0, 1, 7), Plan(adopt=(7,))),
        # A trial that goes on from another one's: only its own later ones.
        (record(4, (3, 4), clone=True), (3, 4), Plan()),
        (record(4, (3, 4), clone=True), (3, 4, 5), Plan(adopt=(5,))),
        (record(6, (3, 4), clone=True), (3, 4, 6), Plan(adopt=(6,))),
        (record(4, (), clone=True), (3, 4, 5), Plan(adopt=(5,))),
        # A number that was set aside for a first save, which was published, and not registered.
        (record(0, ()), (0,), Plan(adopt=(0,))),
        # A number that was set aside for a save which was published, and not registered.
        (record(6, (4, 5)), (4, 5, 6), Plan(adopt=(6,))),
        # Nothing is deleted unless Ray deletes.
        (record(5, (4, 5)), (0, 3, 4, 5), Plan()),
        (record(5, (4, 5), few=True), (3, 0, 5, 4), Plan(retire=(0, 3))),
        (record(5, (4, 5), few=True), (3, 4, 5, 6), Plan(adopt=(6,), retire=(3,))),
        # The best one is kept, however old.
        (record(5, (1, 5), few=True), (0, 1, 2, 5), Plan(retire=(0, 2))),
        (record(5, (), few=True, clone=True), (0, 3), Plan()),
        # A finished trial is left alone, but for what Ray had deleted.
        (record(2, (2,), ended=True), (2, 3), Plan()),
        (record(5, (4, 5), few=True, ended=True), (3, 4, 5, 6), Plan(retire=(3,))),
        (record(3, (), lost=True, ended=True), (1, 4), Plan()),
        # What the state names is gone: the newest that is there counts, older or newer.
        (record(3, (), lost=True), (4,), Plan(adopt=(4,), is_anew=True)),
        (record(3, (1, 2), lost=True), (0, 1, 2), Plan(adopt=(0, 1, 2), is_anew=True)),
        (record(3, (2,), lost=True), (4,), Plan(adopt=(2, 4), is_anew=True)),
        (record(3, (2,), lost=True, few=True), (1, 4), Plan((1, 2, 4), is_anew=True)),
        (record(3, (), lost=True), (), Plan()),
    ],
)
def test_what_is_adopted_and_deleted(
    known: Record, published: tuple[int, ...], expected: Plan
) -> None:
    assert plan(known, published) == expected


@pytest.mark.parametrize(
    ("trial_id", "directories", "expected"),
    [
        ("ab_00001", (), ""),
        ("ab_00001", ("train_ab_00000_0_2026", "train_ab_00001_1_2026"), "train_ab_00001_1_2026"),
        ("ab_00001", ("train_ab_000011_1_2026", "train_cab_00001_1_2026"), ""),
        ("ab_00001", ("ab_00001",), "ab_00001"),
        ("ab_00001", ("t_ab_00001_0_2026", "t_ab_00001_0_2027"), "t_ab_00001_0_2027"),
    ],
)
def test_the_directory_of_a_trial_that_was_saved_before_it_had_one(
    trial_id: str, directories: tuple[str, ...], expected: str
) -> None:
    assert find_directory(TrialNames(trial_id), directories) == expected


def test_the_directory_of_a_trial_with_a_name_of_the_users() -> None:
    assert find_directory(TrialNames("ab_1", custom="mine"), ("mine", "x_ab_1_y")) == "mine"
    assert find_directory(TrialNames("ab_1", custom="mine"), ("x_ab_1_y",)) == ""
    assert find_directory(
        TrialNames("ab_1", beginning="mine_0_a=1_"), ("mine_0_a=1_2026", "mine_00_b")
    ) == ("mine_0_a=1_2026")
    assert find_directory(TrialNames("ab_1", beginning="mine_0_"), ("other",)) == ""
    assert (
        find_directory(TrialNames("ab_1", beginning="mine_0_"), ("mine_0_b", "a_ab_1_y"))
        == "a_ab_1_y"
    )
