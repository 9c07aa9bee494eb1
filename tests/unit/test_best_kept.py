"""Which checkpoints of a whole experiment are kept, and what Ray and the saved state say of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.train._internal.session import _TrainingResult
from ray.tune import Checkpoint, CheckpointConfig
from ray.tune.experiment import Trial

from tests.unit.restored_run import MINE, OTHER, Experiment
from tune_sync import RunConfig, SyncConfig, run_config_kwargs
from tune_sync.errors import ConfigError
from tune_sync.layout import checkpoint_name
from tune_sync.restoring import ray_records
from tune_sync.restoring.best_kept import BestKept, Scored, too_many
from tune_sync.restoring.clones import Clones

SCORED = st.builds(
    Scored, st.tuples(st.booleans(), st.floats(-9, 9)), st.integers(0, 9), st.uuids().map(str),
    st.sampled_from("abc"), st.booleans(),
)  # fmt: skip


@given(st.lists(SCORED), st.integers(1, 9))
def test_the_best_stay_and_what_is_needed(found: list[Scored], keep_count: int) -> None:
    gone = {s.path for scored in too_many(found, keep_count).values() for s in scored}
    best = sorted(found)[-keep_count:]
    assert not gone & {s.path for s in best}
    assert not gone & {s.path for s in found if s.is_needed}
    left = [s for s in found if s.path not in gone and not s.is_needed]
    assert len(left) <= keep_count


class Trained(Experiment):
    """Trials whose checkpoints have scores."""

    def scored(self, directory: str, trial_id: str, *scores: Any, mode: str = "max") -> Trial:
        trial = self.trial(directory, trial_id=trial_id)
        trial.run_metadata.checkpoint_manager._checkpoint_config = CheckpointConfig(
            checkpoint_score_attribute="inner/score", checkpoint_score_order=mode
        )
        for number, score in enumerate(scores):
            self.publish(directory, number)
            path = f"{self.root}/{directory}/{checkpoint_name(number)}"
            metrics = {"inner": {"score": score}, "training_iteration": number + 1}
            ray_records.register(trial, _TrainingResult(Checkpoint(path, self.filesystem), metrics))
            self.run.note_latest(f"{directory}/{checkpoint_name(number)}")
        return trial


@pytest.fixture
def trained(tmp_path: Path) -> Trained:
    return Trained(tmp_path)


def numbers(trial: Trial) -> list[int]:
    return sorted(ray_records.kept(trial))


def latest(trial: Trial) -> int | None:
    now = ray_records.current(trial)
    return ray_records.own_number(trial, now.checkpoint) if now else None


@pytest.mark.parametrize("mode", ["max", "min"])
def test_the_best_of_all_trials_stay(trained: Trained, mode: str) -> None:
    sign = 1 if mode == "max" else -1
    a = trained.scored(MINE, "1", 1 * sign, 9 * sign, 2 * sign, mode=mode)
    b = trained.scored(OTHER, "2", 8 * sign, 3 * sign, float("nan"), mode=mode)
    best = BestKept(2)
    best.begin(trained.run, [a, b])
    assert (numbers(a), numbers(b)) == ([1, 2], [0, 2])  # the last of each goes on
    assert trained.doomed() == {f"{MINE}/0", f"{OTHER}/1"}


def test_of_a_trial_that_has_ended_the_latest_goes_too(trained: Trained) -> None:
    a, b = trained.scored(MINE, "1", 1, 9, 2), trained.scored(OTHER, "2", 3, 4)
    best = BestKept(1)
    best.begin(trained.run, [a, b])
    for trial in (a, b):
        best.look(trained.run, trial, has_ended=True)
    assert (numbers(a), numbers(b)) == ([1], [])
    assert (latest(a), latest(b)) == (1, None)
    assert trained.doomed() == {f"{MINE}/0", f"{MINE}/2", f"{OTHER}/0", f"{OTHER}/1"}


def test_what_a_clone_goes_on_from_is_deleted_once_it_has_one_of_its_own(trained: Trained) -> None:
    a, b = trained.scored(MINE, "1", 1, 9), trained.scored(OTHER, "2", 10, 2)
    ray_records.go_on_from(b, ray_records.kept(a)[0])
    Clones().begin(trained.run, [a, b])
    best = BestKept(1)
    best.begin(trained.run, [a, b])
    assert f"{MINE}/0" not in trained.doomed()
    ray_records.register(b, trained.result(OTHER, 2))
    best.look(trained.run, b)
    trained.run.retire_unused()
    assert f"{MINE}/0" in trained.doomed()


def test_state_that_was_noted_before_names_what_is_kept(trained: Trained) -> None:
    a, b = trained.scored(MINE, "1", 1, 9), trained.scored(OTHER, "2", 2, 3, 4)
    noted = [[json.dumps({"trial_id": t.trial_id, "status": "TERMINATED"}),
              t.run_metadata.get_json_state()] for t in (a, b)]  # fmt: skip
    best = BestKept(2)
    best.begin(trained.run, [a, b])
    for trial in (a, b):
        best.look(trained.run, trial, has_ended=True)
    body = json.dumps({"trial_data": noted}).encode()
    after = json.loads(trained.run.corrections.apply(body))["trial_data"]
    metadata = type(a.run_metadata)
    named = [metadata.from_json_state(pair[1]).checkpoint_manager for pair in after]
    paths = [[r.checkpoint.path[-1] for r in m.best_checkpoint_results] for m in named]
    assert paths == [["1"], ["2"]]
    assert [m.latest_checkpoint_result.checkpoint.path[-1] for m in named] == ["1", "2"]


def test_a_state_of_what_came_later_is_left_as_it_is(trained: Trained) -> None:
    a = trained.scored(MINE, "1", 3, 1, 2)
    best = BestKept(1)
    best.begin(trained.run, [a])
    noted = [json.dumps({"trial_id": "1", "status": "RUNNING"}), a.run_metadata.get_json_state()]
    body = json.dumps({"trial_data": [noted]}).encode()
    assert json.loads(trained.run.corrections.apply(body)) == json.loads(body)


def test_a_restore_deletes_what_had_been_let_go_of_a_trial_that_has_ended(tmp_path: Path) -> None:
    trained = Trained(tmp_path)
    handler = trained.filesystem.handler
    object.__setattr__(handler.spec.options, "keep_best", 1)
    ended = trained.trial(MINE, saved=[1], status=Trial.TERMINATED)
    trained.publish(MINE, 0, 1, 2)
    trained.adopt(ended)
    assert trained.doomed() == {f"{MINE}/0", f"{MINE}/2"}


def test_a_run_has_to_say_what_is_best(trained: Trained, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="checkpoint_score_attribute"):
        RunConfig(storage_path=str(tmp_path), sync_config=SyncConfig(keep_best=3))
    with pytest.raises(ConfigError, match="checkpoint_score_attribute"):
        BestKept(3).begin(trained.run, [trained.trial()])


@pytest.mark.parametrize("fields", [{"keep_best": 0}, {"keep_best": True}, {"keep_best": 1.5}])
def test_a_number_is_needed(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="keep_best"):
        SyncConfig(**fields)


def test_what_does_not_go_together() -> None:
    with pytest.raises(ConfigError, match="sync_on_checkpoint"):
        SyncConfig(keep_best=2, wait_for="staged", sync_on_checkpoint=False)
    with pytest.raises(ConfigError, match="num_to_keep"):
        run_config_kwargs(SyncConfig(keep_best=2), name="x", api="train")
    with pytest.raises(ConfigError, match="Ray Train sends no artifacts"):
        run_config_kwargs(SyncConfig(sync_artifacts=True), name="x", api="train")
