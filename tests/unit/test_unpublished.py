"""One checkpoint that cannot be published holds up what names it, and nothing else."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.tune.experiment import Trial

from tests.unit.restored_run import MINE, OTHER, Experiment
from tests.unit.staged import sealed
from tune_sync.ended_run import end_run
from tune_sync.errors import NotStoredError, NotWholeError
from tune_sync.layout import Kind, checkpoint_name
from tune_sync.manifest import Manifest
from tune_sync.restoring import ray_records
from tune_sync.restoring.unpublished import go_on_without_unpublished, start_without_unpublished
from tune_sync.run import Run
from tune_sync.sent_files import SentFiles

STATE, TIMEOUT_S = "experiment_state-1.json", 20.0


class Search(Experiment):
    """A run whose driver places checkpoints; those of which `broken` tells cannot be recorded."""

    def __init__(self, storage: Path) -> None:
        super().__init__(storage)
        self.broken: dict[str, Exception] = {}
        self.filesystem.handler.files = self.files = SentFiles()
        self.trials: list[Trial] = []
        record = self.run.home.committer.record

        def fail(manifest: Manifest) -> None:
            if manifest.checkpoint in self.broken:
                raise self.broken[manifest.checkpoint]
            record(manifest)

        self.run.home.committer.record = fail  # type: ignore[method-assign]

    def add(self, directory: str, trial_id: str, num_to_keep: int | None = None) -> Trial:
        self.run.begun = False  # Ray looks at once for what it writes there
        trial = self.trial(directory, trial_id=trial_id, num_to_keep=num_to_keep)
        self.run.begun = True
        self.trials.append(trial)
        return trial

    def report(self, trial: Trial, number: int, error: Exception | None = None) -> str:
        """What our callback and Ray do of a report; Ray may delete older ones."""
        key = f"{ray_records.directory_of(trial)}/{checkpoint_name(number)}"
        if error is not None:
            self.broken[key] = error
        attempt = sealed(self.run.home.committer, {"model": b"bytes"}, key)
        metrics = {"training_iteration": number + 1, "from": "manifest"}
        self.run.publish(key, False, [attempt], metrics)
        ray_records.register(trial, self.result(ray_records.directory_of(trial), number))
        return key

    def step(self) -> None:
        """What our callback does at the beginning of a step."""
        self.run.publisher.wait_recorded(TIMEOUT_S)
        go_on_without_unpublished(self.run, self.trials, self.filesystem)

    def state(self) -> None:
        """What Ray does of a version of its state: makes it, and copies it."""
        for trial in self.trials:
            trial.run_metadata.invalidate_cache()
            trial.invalidate_json_state()
        self.files.made(self.run)
        body = json.dumps({"trial_data": [list(t.get_json_state()) for t in self.trials]})
        stream = self.files.stream(self.run.home, STATE, Kind.STATE, self.run, TIMEOUT_S)
        stream.write(body.encode())
        stream.close()

    def named(self) -> dict[str, list[int]]:
        """Trial id -> numbers of the checkpoints that the state at home names, the latest last."""
        self.files.flush(TIMEOUT_S)
        found = {}
        for trial, noted in json.loads((self.root / STATE).read_bytes())["trial_data"]:
            manager = type(self.trials[0].run_metadata).from_json_state(noted).checkpoint_manager
            results = [*manager._checkpoint_results, manager.latest_checkpoint_result]
            paths = [r.checkpoint.path for r in results if r is not None]
            found[json.loads(trial)["trial_id"]] = [int(path[-6:]) for path in paths]
        return found

    def end(self) -> None:
        go_on: Any = lambda: go_on_without_unpublished(self.run, self.trials, self.filesystem)  # noqa: E731
        end_run(self.filesystem.handler, self.run, lambda: None, lambda: None, go_on)


@pytest.fixture
def search(tmp_path: Path) -> Iterator[Search]:
    made = Search(tmp_path)
    yield made
    made.run.close()


def test_state_goes_on_without_it_and_fit_raises_at_the_end(search: Search) -> None:
    one, two = search.add(MINE, "1"), search.add(OTHER, "2")
    search.report(one, 0)
    search.report(two, 0)
    lost = search.report(one, 1, NotWholeError("model is missing"))
    search.step()
    search.state()
    assert search.named() == {"1": [0, 0], "2": [0, 0]}
    assert ray_records.own_number(one, ray_records.current(one).checkpoint) == 0
    search.report(one, 2)
    search.step()
    search.state()
    assert search.named() == {"1": [0, 2, 2], "2": [0, 0]}
    with pytest.raises(NotStoredError, match=f"{lost}: model is missing"):
        search.end()


def test_a_state_that_waits_for_it_goes_on_once_it_is_left_out(search: Search) -> None:
    """The version was made before anybody knew."""
    one = search.add(MINE, "1")
    search.report(one, 0)
    search.step()
    search.report(one, 1, NotWholeError("model is missing"))
    search.state()
    search.step()
    assert search.named() == {"1": [0, 0]}
    assert not search.files.unstored


def test_the_last_state_goes_on_without_it_too(search: Search) -> None:
    one = search.add(MINE, "1")
    search.report(one, 0)
    search.step()
    lost = search.report(one, 1, NotWholeError("model is missing"))
    search.state()
    with pytest.raises(NotStoredError, match=lost):
        search.end()
    assert search.named() == {"1": [0, 0]}


def test_once_ray_has_let_it_go_state_and_deletes_go_on_and_nothing_is_missed(
    search: Search,
) -> None:
    one = search.add(MINE, "1", num_to_keep=2)
    keys = [
        search.report(one, number, NotWholeError("lost") if number == 1 else None)
        for number in range(6)
    ]
    for _ in range(3):
        search.step()
        search.state()
        search.files.flush(TIMEOUT_S)
    search.end()
    assert search.named() == {"1": [4, 5, 5]}
    assert [key for key in keys if (search.root / key).exists()] == keys[4:]


def test_nobody_has_to_leave_out_what_a_version_does_not_name(search: Search) -> None:
    """As Ray has let go of it before that was made; also of what may be recorded later."""
    search.report(search.add(MINE, "1", num_to_keep=1), 0, OSError(errno.EIO, "Input/output error"))
    search.state()
    search.files.flush(TIMEOUT_S)
    assert STATE in search.files.unstored
    search.report(search.trials[0], 1)
    search.state()
    assert search.named() == {"1": [1, 1]}


def test_what_may_pass_holds_state_up_until_it_does(search: Search) -> None:
    one = search.add(MINE, "1")
    search.report(one, 0)
    lost = search.report(one, 1, OSError(errno.EIO, "Input/output error"))
    search.step()
    search.state()
    search.files.flush(TIMEOUT_S)
    assert lost in search.files.unstored[STATE] and not (search.root / STATE).exists()
    del search.broken[lost]
    search.state()
    assert search.named() == {"1": [0, 1, 1]}
    search.end()


def test_what_is_published_after_all_is_named_again(search: Search) -> None:
    one = search.add(MINE, "1")
    search.report(one, 0)
    lost = search.report(one, 1, NotWholeError("seen late"))
    search.step()
    search.report(one, 2)
    search.step()
    del search.broken[lost]
    search.run.publisher.try_again()
    search.step()
    search.state()
    assert search.named() == {"1": [0, 1, 2, 2]}
    search.end()


def test_the_last_one_of_a_trial_is_its_latest_again_if_it_is_published_after_all(
    search: Search,
) -> None:
    one, other = search.add(MINE, "1"), search.add(OTHER, "2")
    search.report(one, 0)
    last = search.report(one, 1, OSError(errno.EIO, "Input/output error"))
    for number in range(3):
        search.report(other, number)
        search.step()
        search.state()
        search.files.flush(TIMEOUT_S)
    search.step()
    assert search.run.publisher.given_up() == {last}
    assert search.named()["1"] == [0, 0]
    del search.broken[last]
    search.state()
    search.end()
    assert ray_records.current(one).checkpoint.path.endswith(last)


def test_where_only_one_is_kept_the_one_before_it_is_kept_again(search: Search) -> None:
    one = search.add(MINE, "1", num_to_keep=1)
    search.report(one, 0)
    search.step()
    search.state()
    search.report(one, 1, NotWholeError("lost"))
    search.step()
    assert ray_records.current(one).metrics["from"] == "manifest"
    for _ in range(3):
        search.state()
        assert search.named() == {"1": [0, 0]}
    search.report(one, 2)
    for _ in range(3):
        search.step()
        search.state()
        search.files.flush(TIMEOUT_S)
    search.end()
    assert search.named() == {"1": [2, 2]}
    assert [p.name for p in (search.root / MINE).glob("checkpoint_*")] == [checkpoint_name(2)]


def test_a_trial_that_is_told_to_go_on_from_it_goes_on_from_its_own(search: Search) -> None:
    one, two = search.add(MINE, "1"), search.add(OTHER, "2")
    search.report(one, 0)
    search.report(one, 1, NotWholeError("lost"))
    told = ray_records.current(one)
    search.report(two, 0)
    search.step()
    ray_records.go_on_from(two, told)  # Population Based Training remembers it
    search.state()
    assert search.named()["2"] == [0, 0]
    start_without_unpublished(search.run, two, search.filesystem)
    assert ray_records.own_number(two, ray_records.current(two).checkpoint) == 0


def test_no_other_correction_brings_it_back(search: Search) -> None:
    one = search.add(MINE, "1")
    for number in range(3):
        search.report(one, number, NotWholeError("lost") if number == 1 else None)
    search.step()
    gone = {f"{search.root}/{MINE}/{checkpoint_name(0)}"}
    ray_records.drop(one, gone)
    search.run.corrections.put("1", ray_records.correction(one, gone))
    search.state()
    assert search.named() == {"1": [2, 2]}


def test_it_does_not_come_back_after_its_delete(search: Search) -> None:
    run: Run = search.run
    one = search.add(MINE, "1", num_to_keep=1)
    lost = search.report(one, 0, NotWholeError("lost"))
    search.step()
    search.report(one, 1)
    for _ in range(3):
        search.step()
        search.state()
        search.files.flush(TIMEOUT_S)
    run.publisher.flush(TIMEOUT_S)
    run.publisher.try_again()
    assert not run.publisher.failed() and not (search.root / lost).exists()
