"""Ray's record of restored trials, brought up to what is published: with Ray's own `Trial`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest
from ray.train._internal.session import _TrainingResult
from ray.tune import Checkpoint
from ray.tune.experiment import Trial

from tests.unit.restored_run import MINE, OTHER, Experiment
from tune_sync.layout import checkpoint_name, manifest_key
from tune_sync.manifest import to_json
from tune_sync.restoring import ray_records


@pytest.fixture
def experiment(tmp_path: Path) -> Iterator[Experiment]:
    made = Experiment(tmp_path)
    yield made
    made.run.close()


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture
def warnings() -> Iterator[list[str]]:
    """What tune_sync warns of."""
    kept = Kept()
    logging.getLogger("ray.tune_sync").addHandler(kept)
    yield kept.lines
    logging.getLogger("ray.tune_sync").removeHandler(kept)


def goes_on_from(trial: Trial) -> int | None:
    found = ray_records.current(trial)
    return ray_records.own_number(trial, found.checkpoint) if found else None


def kept(trial: Trial) -> dict[int, str]:
    """Number -> where its metrics are from."""
    return {n: r.metrics["from"] for n, r in sorted(ray_records.kept(trial).items())}


def test_later_ones_are_registered_in_order_with_their_own_metrics(
    experiment: Experiment, warnings: list[str]
) -> None:
    trial = experiment.trial(saved=[0, 1])
    trial.config = {"rate": 0.1}
    experiment.publish(MINE, 0, 1, 2, 3)
    experiment.adopt(trial)
    assert ray_records.current(trial).metrics["config"] == {"rate": 0.1}
    assert goes_on_from(trial) == 3
    assert kept(trial) == {0: "state", 1: "state", 2: "manifest", 3: "manifest"}
    assert ray_records.index_of(trial) == 3
    assert experiment.run.latest(MINE) == f"{MINE}/{checkpoint_name(3)}"
    assert warnings == []


def test_where_all_is_known_nothing_changes(experiment: Experiment, warnings: list[str]) -> None:
    trial = experiment.trial(saved=[0, 1])
    experiment.publish(MINE, 0, 1)
    before = ray_records.current(trial)
    experiment.adopt(trial)
    assert ray_records.current(trial) is before
    assert kept(trial) == {0: "state", 1: "state"}
    assert warnings == []


def forget_metrics(experiment: Experiment, number: int, known: dict[str, Any] | None) -> None:
    """What the manifest of a checkpoint says, if its driver had no time to tell more."""
    manifest = experiment.run.home.committer.manifest(f"{MINE}/{checkpoint_name(number)}")
    file = experiment.root / manifest_key(manifest.checkpoint)
    file.write_bytes(to_json(replace(manifest, metrics=known)))


def test_of_metrics_that_nobody_knows_only_counts_are_made_up_as_far_as_they_are_sure(
    experiment: Experiment, warnings: list[str]
) -> None:
    trial = experiment.trial(saved=[0])
    trial.run_metadata.last_result = {
        "from": "last result", "score": 0.5, "training_iteration": 7, "time_total_s": 3.5,
        "checkpoint_dir_name": checkpoint_name(0),
    }  # fmt: skip
    experiment.log(MINE, 7)
    experiment.publish(MINE, 0, 1, 2)
    forget_metrics(experiment, 1, None)
    forget_metrics(experiment, 2, {"score": 0.9, "time_total_s": 0.1})
    experiment.adopt(trial)
    found = ray_records.kept(trial)
    counts = {"time_total_s": 3.5, "config": trial.config}
    assert found[1].metrics == {"training_iteration": 8, **counts}
    assert found[2].metrics == {"training_iteration": 9, "score": 0.9, **counts}
    assert [f"{MINE}/{checkpoint_name(1)}: nobody knows" in line for line in warnings] == [True]
    assert experiment.logged(MINE) == [7], "what is made up is no row"


def test_rows_that_died_with_the_driver_are_put_back(experiment: Experiment) -> None:
    trial = experiment.trial(saved=[0, 1])
    experiment.publish(MINE, 0, 1, 2, 3)
    forget_metrics(experiment, 2, {"from": "the trial"})
    experiment.adopt(trial)
    assert experiment.logged(MINE) == [2, 4]


def test_what_was_reported_before_the_last_result_has_a_lower_count(experiment: Experiment) -> None:
    trial = experiment.trial(saved=[2])
    trial.run_metadata.last_result = {"training_iteration": 12, "time_total_s": 3.5}
    experiment.publish(MINE, 0)
    forget_metrics(experiment, 0, None)
    experiment.adopt(trial)
    assert goes_on_from(trial) == 0
    assert ray_records.current(trial).metrics == {"training_iteration": 10, "config": trial.config}


def test_a_finished_trial_stays_as_it_is(experiment: Experiment) -> None:
    trial = experiment.trial(saved=[0, 1], status=Trial.TERMINATED)
    experiment.publish(MINE, 0, 1, 2)
    experiment.adopt(trial)
    assert goes_on_from(trial) == 1
    assert ray_records.index_of(trial) == 1


@pytest.mark.parametrize("harm", [Experiment.remove, Experiment.lose_file, Experiment.shorten_file])
def test_where_the_named_one_is_gone_the_record_is_made_anew(
    experiment: Experiment, warnings: list[str], harm: Callable[[Experiment, str, int], None]
) -> None:
    trial = experiment.trial(saved=[0, 1, 2])
    experiment.publish(MINE, 0, 1, 2)
    harm(experiment, MINE, 2)
    experiment.adopt(trial)
    assert goes_on_from(trial) == 1
    assert kept(trial) == {0: "state", 1: "state"}
    (warning,) = [line for line in warnings if "is gone" in line]
    assert f"{checkpoint_name(2)} is gone; going on from" in warning
    assert warning.endswith(f"/{MINE}/{checkpoint_name(1)}")


def test_one_without_a_manifest_is_there_if_the_state_names_it(experiment: Experiment) -> None:
    """As an earlier run without tune_sync, or plain Ray, left it."""
    trial = experiment.trial(saved=[0])
    (experiment.root / MINE / checkpoint_name(0)).mkdir(parents=True)
    experiment.adopt(trial)
    assert goes_on_from(trial) == 0
    experiment.publish(MINE, 1)
    experiment.adopt(trial)
    assert kept(trial) == {0: "state", 1: "manifest"}


def test_a_checkpoint_of_another_filesystem_is_not_ours_to_miss(experiment: Experiment) -> None:
    trial = experiment.trial()
    experiment.publish(MINE, 0)
    elsewhere = experiment.result(OTHER, 5, pafs.LocalFileSystem())
    trial.run_metadata.checkpoint_manager._latest_checkpoint_result = elsewhere
    assert ray_records.is_clone(trial)
    experiment.adopt(trial)
    assert ray_records.current(trial) is elsewhere


def test_one_whose_manifest_is_unreadable_is_told_of_once(
    experiment: Experiment, warnings: list[str]
) -> None:
    trial = experiment.trial(saved=[0, 1])
    experiment.publish(MINE, 0, 1)
    (experiment.root / manifest_key(f"{MINE}/{checkpoint_name(1)}")).write_bytes(b"{")
    experiment.adopt(trial)
    assert goes_on_from(trial) == 1, "the state names it, and it is there"
    assert [checkpoint_name(1) in line for line in warnings] == [True]


def test_in_a_bucket_one_whose_manifest_is_unreadable_is_passed_over_and_stays(
    experiment: Experiment, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment.run.home, "in_place", True)
    trial = experiment.trial(saved=[0, 1, 2], num_to_keep=3)
    experiment.publish(MINE, 0, 1, 2)
    for number in (0, 2):
        (experiment.root / manifest_key(f"{MINE}/{checkpoint_name(number)}")).write_bytes(b"{")
    experiment.adopt(trial)
    assert goes_on_from(trial) == 1, "nothing but its manifest lets one be read"
    assert any("is gone; going on from" in line for line in warnings)
    experiment.adopt(trial)
    experiment.run.close()
    assert (experiment.root / MINE / checkpoint_name(0)).is_dir()
    assert (experiment.root / MINE / checkpoint_name(2)).is_dir()


def test_a_clone_whose_source_is_nowhere_goes_on_from_its_own(experiment: Experiment) -> None:
    clone = experiment.trial(OTHER, trial_id="2")
    experiment.publish(OTHER, 0)
    gone = Checkpoint("/before/x/gone/checkpoint_000004", experiment.filesystem)
    manager = clone.run_metadata.checkpoint_manager
    manager._latest_checkpoint_result = _TrainingResult(gone, {"training_iteration": 9})
    experiment.adopt(clone)
    assert goes_on_from(clone) == 0


def test_torn_and_unreadable_ones_are_passed_over_with_a_warning(
    experiment: Experiment, warnings: list[str]
) -> None:
    trial = experiment.trial(saved=[0])
    experiment.publish(MINE, 0, 1, 2, 3)
    experiment.lose_file(MINE, 2)
    (experiment.root / manifest_key(f"{MINE}/{checkpoint_name(3)}")).write_bytes(b"{")
    experiment.adopt(trial)
    assert goes_on_from(trial) == 1
    assert [checkpoint_name(2) in line for line in warnings if "not whole any more" in line] == [
        True
    ]
    assert [checkpoint_name(3) in line for line in warnings if "does not count" in line] == [True]


def test_a_manifest_with_a_name_that_no_file_can_have_costs_its_own_checkpoint_alone(
    experiment: Experiment,
) -> None:
    trial = experiment.trial(saved=[0, 1])
    experiment.publish(MINE, 0, 1)
    record = experiment.root / manifest_key(f"{MINE}/{checkpoint_name(1)}")
    record.write_text(record.read_text().replace("model", 300 * "m"))
    experiment.adopt(trial)
    assert goes_on_from(trial) == 0


def test_no_number_that_is_there_is_given_again(
    experiment: Experiment, warnings: list[str]
) -> None:
    trial = experiment.trial(saved=[0])
    experiment.publish(MINE, 0)
    (experiment.root / MINE / checkpoint_name(7)).mkdir()
    experiment.adopt(trial)
    assert goes_on_from(trial) == 0
    assert ray_records.index_of(trial) == 7
    (warning,) = warnings
    assert f"{MINE}/{checkpoint_name(7)} has no manifest" in warning


def test_numbers_that_were_set_aside_stay_so(experiment: Experiment) -> None:
    trial = experiment.trial(saved=[0])
    ray_records.reserve(trial, 6)
    experiment.publish(MINE, 0, 4)
    experiment.adopt(trial)
    assert goes_on_from(trial) == 4
    assert ray_records.index_of(trial) == 6


def test_what_ray_had_deleted_is_deleted_unless_another_trial_goes_on_from_it(
    experiment: Experiment,
) -> None:
    mine = experiment.trial(saved=[2, 3], num_to_keep=2)
    clone = experiment.trial(OTHER, trial_id="2")
    experiment.publish(MINE, 0, 1, 2, 3)
    cloned = experiment.result(MINE, 1)
    clone.run_metadata.checkpoint_manager._latest_checkpoint_result = cloned
    experiment.adopt(mine, clone)
    assert experiment.doomed() == {f"{MINE}/0"}
    assert ray_records.current(clone) is cloned


def test_of_a_finished_trial_too_what_ray_had_deleted_is_deleted(experiment: Experiment) -> None:
    ended = experiment.trial(saved=[2, 3], num_to_keep=2, status=Trial.TERMINATED)
    all_kept = experiment.trial(OTHER, [2, 3], trial_id="2")
    experiment.publish(MINE, 0, 2, 3)
    experiment.publish(OTHER, 0, 2, 3)
    experiment.adopt(ended, all_kept)
    assert experiment.doomed() == {f"{MINE}/0"}


def test_a_clone_finds_what_it_goes_on_from_after_a_move(experiment: Experiment) -> None:
    clone = experiment.trial(OTHER, trial_id="2")
    experiment.publish(MINE, 0)
    old = Checkpoint(f"/before/x/{MINE}/{checkpoint_name(0)}", pafs.LocalFileSystem())
    manager = clone.run_metadata.checkpoint_manager
    manager._latest_checkpoint_result = _TrainingResult(old, {"training_iteration": 1})
    experiment.adopt(clone)
    found = ray_records.current(clone).checkpoint
    assert found.path == f"{experiment.root}/{MINE}/{checkpoint_name(0)}"
    assert found.filesystem == experiment.filesystem
    elsewhere = Checkpoint("/before/x/gone/checkpoint_000004", pafs.LocalFileSystem())
    manager._latest_checkpoint_result = _TrainingResult(elsewhere, {"training_iteration": 1})
    experiment.adopt(clone)
    assert ray_records.current(clone).checkpoint is elsewhere


def goes_on_from_another(experiment: Experiment, trial: Trial, number: int) -> None:
    """Make a trial that of another one's clone."""
    manager = trial.run_metadata.checkpoint_manager
    manager._latest_checkpoint_result = experiment.result(MINE, number)


def test_of_a_clone_only_what_came_after_it_was_cloned_counts(experiment: Experiment) -> None:
    clone = experiment.trial(OTHER, trial_id="2")
    ray_records.reserve(clone, 1)
    experiment.publish(MINE, 5)
    experiment.publish(OTHER, 0, 1)
    goes_on_from_another(experiment, clone, 5)
    experiment.adopt(clone)
    assert (goes_on_from(clone), kept(clone)) == (None, {})
    experiment.publish(OTHER, 2)
    experiment.adopt(clone)
    assert ray_records.is_clone(clone), "what it was cloned from is further on"
    assert kept(clone) == {2: "manifest"}
    experiment.publish(OTHER, 9)
    experiment.adopt(clone)
    assert goes_on_from(clone) == 9


def test_what_the_state_keeps_and_is_gone_hides_nothing(experiment: Experiment) -> None:
    clone = experiment.trial(OTHER, [0, 2], trial_id="2")
    experiment.publish(MINE, 5)
    experiment.publish(OTHER, 0, 1, 2)
    experiment.remove(OTHER, 2)
    goes_on_from_another(experiment, clone, 5)
    experiment.adopt(clone)
    assert 1 in kept(clone)


def test_of_a_finished_trial_whose_last_one_is_gone_old_ones_are_deleted_too(
    experiment: Experiment,
) -> None:
    ended = experiment.trial(saved=[2, 3], num_to_keep=2, status=Trial.TERMINATED)
    experiment.publish(MINE, 0, 2, 3)
    experiment.remove(MINE, 3)
    experiment.adopt(ended)
    assert experiment.doomed() == {f"{MINE}/0"}
