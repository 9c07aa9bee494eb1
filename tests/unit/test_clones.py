"""What a trial goes on from that was told to clone another one: with Ray's own `Trial`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.tune.experiment import Trial

from tests.unit.restored_run import MINE, OTHER, Experiment
from tune_sync.behind.behind import Behind
from tune_sync.layout import checkpoint_name
from tune_sync.restoring import ray_records
from tune_sync.restoring.clones import Clones

FIRST = f"{MINE}/{checkpoint_name(0)}"


@pytest.fixture
def experiment(tmp_path: Path) -> Iterator[Experiment]:
    made = Experiment(tmp_path)
    made.publish(MINE, 0, 1, 2)
    yield made
    made.run.close()


class NoNodes:
    """Nothing is staged anywhere."""


@pytest.fixture
def donor(experiment: Experiment) -> Trial:
    """It keeps only its newest."""
    return experiment.trial(MINE, [2], status=Trial.RUNNING)


@pytest.fixture
def clone(experiment: Experiment) -> Trial:
    """It is to go on from one that Ray has deleted."""
    made = experiment.trial(OTHER, trial_id="2", status=Trial.RUNNING)
    ray_records.go_on_from(made, experiment.result(MINE, 0))
    return made


def begun(experiment: Experiment) -> Clones:
    clones = Clones()
    clones.begin(experiment.run, ())
    return clones


def number_of(trial: Trial) -> int:
    return int(ray_records.current(trial).checkpoint.path[-6:])


def test_what_is_in_use_is_deleted_once_it_is_not(
    experiment: Experiment, donor: Trial, clone: Trial
) -> None:
    run, clones = experiment.run, begun(experiment)
    clones.reported(run, [donor, clone], clone)
    run.let_go(FIRST)
    run.retire_unused()
    assert experiment.doomed() == set()
    ray_records.register(clone, experiment.result(OTHER, 5))
    run.retire_unused()
    assert experiment.doomed() == {f"{MINE}/0"}


@pytest.mark.parametrize("stage", ["doomed", "due", "behind"])
def test_a_delete_that_has_not_begun_is_taken_back(
    experiment: Experiment, donor: Trial, clone: Trial, stage: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    run, clones = experiment.run, begun(experiment)
    monkeypatch.setattr(run.publisher._deletes, "add", lambda task: None)  # it has other work
    if stage == "behind":
        run.behind = Behind(run.home, run.publisher, NoNodes())  # type: ignore[arg-type]
    if stage == "due":
        run.publisher.retire_now(FIRST)
    else:
        run.let_go(FIRST)
    clones.reported(run, [donor, clone], clone)
    assert number_of(clone) == 0
    assert not run.publisher._doomed and not run.publisher._due
    assert not run.spare("none/checkpoint_000000")
    assert run.spare(FIRST), "it goes later"


def test_where_it_is_gone_the_donors_newest_is_taken(
    experiment: Experiment, donor: Trial, clone: Trial
) -> None:
    run, clones = experiment.run, begun(experiment)
    experiment.remove(MINE, 0)
    clones.reported(run, [donor, clone], clone)
    assert number_of(clone) == 2
    assert ray_records.is_clone(clone)
    experiment.remove(MINE, 1)


def test_what_was_saved_just_now_and_is_not_registered_yet_is_published_and_taken(
    experiment: Experiment, donor: Trial
) -> None:
    clone = experiment.trial(OTHER, trial_id="2", status=Trial.PAUSED)
    ray_records.go_on_from(clone, experiment.result(MINE, 3))
    asked: list[Trial] = []

    def publish_early(trial: Trial) -> None:
        asked.append(trial)
        experiment.publish(MINE, 3)

    begun(experiment).reported(experiment.run, [donor, clone], clone, publish_early)
    assert asked == [clone]
    assert number_of(clone) == 3


def test_what_is_being_deleted_is_gone(experiment: Experiment, donor: Trial, clone: Trial) -> None:
    run, clones = experiment.run, begun(experiment)
    run.publisher._retiring.add(FIRST)
    clones.reported(run, [donor, clone], clone)
    run.publisher._retiring.clear()
    assert number_of(clone) == 2


def test_paused_trials_become_clones_when_another_one_reports(
    experiment: Experiment, donor: Trial, clone: Trial
) -> None:
    run, clones = experiment.run, begun(experiment)
    ray_records.go_on_from(clone, None)
    clones.reported(run, [donor, clone], clone)
    clone.status = Trial.PAUSED
    clones.step(run)
    ray_records.go_on_from(clone, experiment.result(MINE, 0))
    clones.reported(run, [donor, clone], donor)
    run.let_go(FIRST)
    run.retire_unused()
    assert experiment.doomed() == set(), "it is in use"


def test_what_a_restored_clone_goes_on_from_is_deleted_once_it_has_one_of_its_own(
    experiment: Experiment,
) -> None:
    donor = experiment.trial(MINE, [2], num_to_keep=1)
    clone = experiment.trial(OTHER, trial_id="2", num_to_keep=1)
    ray_records.go_on_from(clone, experiment.result(MINE, 0))
    experiment.adopt(donor, clone)
    assert experiment.doomed() == {f"{MINE}/1"}
    experiment.clones.step(experiment.run)
    assert experiment.doomed() == {f"{MINE}/1"}
    ray_records.register(clone, experiment.result(OTHER, 5))
    experiment.clones.step(experiment.run)
    assert experiment.doomed() == {f"{MINE}/0", f"{MINE}/1"}
