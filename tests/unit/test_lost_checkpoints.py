"""Trials go on without what was lost with a node, whether the destination answers or not."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from tests.unit.restored_run import MINE, OTHER, Experiment
from tests.unit.test_run_left import Silent
from tune_sync.behind.behind import Behind
from tune_sync.errors import StoreUnreachableError
from tune_sync.layout import checkpoint_name
from tune_sync.restoring import lost_checkpoints, ray_records
from tune_sync.restoring.lost_checkpoints import LostCheckpoints

TIMEOUT_S = 30.0


def key(number: int, directory: str = MINE) -> str:
    return f"{directory}/{checkpoint_name(number)}"


class Away:
    """A destination of which manifests and keys cannot be had, or only after a long time."""

    def __init__(self, of: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_away, self.asked_by, self.may_answer = True, list[str](), threading.Event()
        self.may_answer.set()
        self._ask(of.run.home.committer, "manifest", monkeypatch)
        self._ask(of.run.home, "published_keys", monkeypatch)

    def _ask(self, owner: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        there: Callable[..., Any] = getattr(owner, name)

        def ask(*args: Any, **more: Any) -> Any:
            self.asked_by.append(threading.current_thread().name)
            self.may_answer.wait(TIMEOUT_S)
            if self.is_away:
                raise StoreUnreachableError("it does not answer")
            return there(*args, **more)

        monkeypatch.setattr(owner, name, ask)


class Driver:
    """A run with write-behind, from when its trials are made; its node `n1` is lost."""

    def __init__(self, root: Path) -> None:
        self.of = Experiment(root)
        self.run = self.of.run
        self.lost = LostCheckpoints(self.of.filesystem)

    @cached_property
    def behind(self) -> Behind:
        self.run.write_behind(Silent())
        assert self.run.behind is not None
        return self.run.behind

    def lose(self, *numbers: int) -> None:
        for number in numbers:
            self.behind.accept(key(number), False, [f"a{number}@n1"], {"told": number})
        self.behind._asking.lose_node("n1", "node n1 is gone")

    def until(self, trial: Any, current: str) -> None:
        end_s = time.monotonic() + TIMEOUT_S
        while now(self.run, trial) != current:
            assert time.monotonic() < end_s
            self.lost.go_on_without(self.run, [trial])
            time.sleep(0.01)


def now(run: Any, trial: Any) -> str:
    result = ray_records.current(trial)
    return ray_records.key_of(run, result) if result else ""


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    made = Driver(tmp_path)
    yield made
    made.behind.close(TIMEOUT_S)


def test_what_earlier_runs_stored_is_asked_for_again_and_again_and_not_by_the_control_loop(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.of.publish(MINE, 0)
    trial = driver.of.trial(MINE, [1])
    away = Away(driver.of, monkeypatch)
    driver.lose(1)
    for _ in range(50):
        driver.lost.go_on_without(driver.run, [trial])
        time.sleep(0.01)
    assert now(driver.run, trial) == key(1), "nothing is known of what is stored"
    assert driver.behind.gone() == {key(1)}, "it is forgotten only once"
    away.is_away = False
    driver.until(trial, key(0))
    assert driver.behind.gone() == set()
    assert ray_records.current(trial).metrics["from"] == "manifest"
    assert set(away.asked_by) == {"tune_sync-lost"}


def test_a_trial_that_starts_waits_a_while_for_the_answer(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.of.publish(MINE, 0)
    trial = driver.of.trial(MINE, [1])
    away = Away(driver.of, monkeypatch)
    away.is_away = False
    away.may_answer.clear()
    driver.lose(1)
    monkeypatch.setattr(lost_checkpoints, "ANSWER_S", 0.1)
    start_s = time.monotonic()
    driver.lost.about_to_load(driver.run, [trial], trial)
    assert time.monotonic() - start_s < 5.0
    assert now(driver.run, trial) == key(1)
    monkeypatch.setattr(lost_checkpoints, "ANSWER_S", TIMEOUT_S)
    threading.Timer(0.2, away.may_answer.set).start()
    driver.lost.about_to_load(driver.run, [trial], trial)
    assert now(driver.run, trial) == key(0)


def test_what_this_run_stored_is_known_without_a_question(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also its metrics, where Ray has deleted it since: only its latest is in Ray's record."""
    trial = driver.of.trial(MINE, [2], num_to_keep=1)
    driver.behind.accept(key(0), False, ["a0@n2"], {"training_iteration": 1, "told": 0})
    driver.behind._published(key(0))
    away = Away(driver.of, monkeypatch)
    driver.lose(1, 2)
    with caplog.at_level(logging.WARNING, "ray.tune_sync"):
        driver.lost.go_on_without(driver.run, [trial])
    assert now(driver.run, trial) == key(0)
    assert ray_records.current(trial).metrics["told"] == 0
    assert away.asked_by == []
    said = f"{key(2)} is lost (node n1 is gone); its newest that is stored is {key(0)}"
    assert [r.getMessage().endswith(said) for r in caplog.records] == [True], caplog.text


def test_that_nothing_is_stored_is_said(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    trial = driver.of.trial(MINE, [1])
    driver.lose(1)
    with caplog.at_level(logging.WARNING, "ray.tune_sync"):
        driver.until(trial, "")
    said = f"{key(1)} is lost (node n1 is gone); its newest that is stored is none"
    assert [r.getMessage().endswith(said) for r in caplog.records] == [True], caplog.text


def test_one_trial_whose_answer_is_late_holds_no_other_one_up(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial, other = driver.of.trial(MINE, [1]), driver.of.trial(OTHER, [0, 1], trial_id="2")
    driver.behind.accept(key(0, OTHER), False, ["b0@n2"], None)
    driver.behind._published(key(0, OTHER))
    driver.behind.accept(key(1, OTHER), False, ["b1@n1"], None)
    Away(driver.of, monkeypatch)
    driver.lose(1)
    driver.lost.go_on_without(driver.run, [trial, other])
    assert now(driver.run, other) == key(0, OTHER)
    assert driver.behind.gone() == {key(1)}
