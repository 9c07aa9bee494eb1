"""What nodes have left is that of a trial of the experiment, or it stays, and is named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.restored_run import Experiment
from tests.unit.test_left_behind import FIRST, SECOND, home, leave, root, sent, staging
from tests.unit.test_node_sender import Shaky
from tune_sync.agents.left_on_nodes import Wanted
from tune_sync.behind.left_behind import find
from tune_sync.homes.saved_state import TrialNames
from tune_sync.layout import checkpoint_name
from tune_sync.restoring import ray_records

__all__ = ["home", "root", "staging"]  # fixtures


def test_a_trial_is_known_by_its_id_or_by_what_is_published_of_it() -> None:
    trials = frozenset({TrialNames("ab12c_00000")})
    wanted = Wanted(trials, {"custom": f"custom/{checkpoint_name(3)}"})
    directory = "train_ab12c_00000_0_rate=1_2026-01-01"
    assert wanted(f"{directory}/{checkpoint_name(0)}") is True
    assert wanted(f"train_ab12c_000001_0/{checkpoint_name(0)}") is None
    assert wanted(f"custom/{checkpoint_name(3)}") is False
    assert wanted(f"custom/{checkpoint_name(4)}") is True


def test_a_trial_is_known_by_the_directory_that_users_named() -> None:
    begun = TrialNames("ab_1", directory="lr=0.1")
    late = [TrialNames("ab_2", custom="mine"), TrialNames("ab_3", beginning="net_0_a=1_")]
    wanted = Wanted(frozenset({begun, *late}), {})
    for directory in ("lr=0.1", "mine", "net_0_a=1_2026", "mine/inner"):
        assert wanted(f"{directory}/{checkpoint_name(0)}") is True
    for directory in ("lr=0.10", "mine_1", "net_00"):
        assert wanted(f"{directory}/{checkpoint_name(0)}") is None


LONG = "n" * 120


@pytest.mark.parametrize("name", ["net(a)", 'a/b:c<d>"e"|f?g*h\\i', LONG])
def test_a_trial_is_known_by_the_directory_that_ray_makes_of_its_name(
    tmp_path: Path, name: str
) -> None:
    """Ray puts other characters in the place of some, and cuts what is long."""
    experiment = Experiment(tmp_path)
    trials = [
        experiment.trial("", trial_id=f"ab_{n}", trial_name_creator=lambda trial: name,
                         experiment_tag=f"{n}_a={'1' * 20}")
        for n in (1, 11)
    ]  # fmt: skip
    saved = [TrialNames.of(json.loads(trial.get_json_state()[0])) for trial in trials]
    made = [trial._generate_dirname() for trial in trials]
    assert [[names.has(directory) for directory in made] for names in saved] == [
        [True, False], [False, True],
    ]  # fmt: skip
    assert [ray_records.names_of(trial).beginning for trial in trials] == [
        names.beginning for names in saved
    ]
    experiment.run.close()


def test_of_names_that_are_cut_to_one_none_is_known(tmp_path: Path) -> None:
    """A trial that took the directory of another one would go on from its checkpoints."""
    experiment = Experiment(tmp_path)
    trial = experiment.trial("", trial_name_creator=lambda trial: "n" * 200, experiment_tag="1_a=1")
    assert not ray_records.names_of(trial).has(trial._generate_dirname())
    experiment.run.close()


def test_a_directory_that_a_user_named_is_known_as_ray_makes_it(tmp_path: Path) -> None:
    experiment = Experiment(tmp_path)
    trial = experiment.trial("", trial_dirname_creator=lambda trial: "lr(0.1)|b:2")
    assert ray_records.names_of(trial).has(trial._generate_dirname())
    experiment.run.close()


def test_what_is_of_no_trial_of_the_experiment_stays_and_is_named(
    staging: Path, root: Path, home: Shaky, caplog: pytest.LogCaptureFixture
) -> None:
    leave(root, FIRST)
    leave(root, SECOND)
    (left,) = find(staging)
    assert sent(left, home, Wanted(frozenset({TrialNames("abc_00000")}), {})) == []
    assert len([r for r in caplog.messages if f"{root}" in r and "'t'" in r]) == 1
