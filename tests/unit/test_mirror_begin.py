"""A mirror begins where no other experiment is, and where what is sent can be fetched."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.bed.tree import tree_digest
from tests.unit.test_mirror import (
    NO_TRIALS,
    TIMEOUT_S,
    Notebook,
    publish,
    start,
    write_state,
)
from tune_sync.errors import ConfigError, ExperimentExistsError, StoreError
from tune_sync.mirror.mirror import Mirror
from tune_sync.run import Run
from tune_sync.syncers.command import CommandSyncer


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "home/exp"


@pytest.fixture
def syncer(tmp_path: Path) -> Notebook:
    return Notebook(tmp_path / "remote/exp")


def test_another_experiment_there_is_refused_before_anything_is_sent(
    root: Path, tmp_path: Path, runs: list[Run], syncer: Notebook
) -> None:
    publish(start(root, runs, syncer), 0)
    write_state(runs[0], NO_TRIALS)
    runs[0].flush(TIMEOUT_S)
    runs[0].close()
    before = list(syncer.notes)
    with pytest.raises(ExperimentExistsError, match=r"another name.*fetch_experiment"):
        start(tmp_path / "elsewhere/exp", runs, syncer)
    assert syncer.notes == before
    start(root, runs, syncer, "resume").flush(TIMEOUT_S)


@pytest.mark.parametrize("failing_count", [1, 2])
def test_another_experiment_that_a_first_download_does_not_show_is_refused_too(
    root: Path, tmp_path: Path, runs: list[Run], syncer: Notebook, failing_count: int
) -> None:
    publish(start(root, runs, syncer), 0)
    write_state(runs[0], NO_TRIALS)
    runs[0].flush(TIMEOUT_S)
    runs[0].close()
    before = tree_digest(syncer.top)
    syncer.failing_downloads_count = failing_count
    with pytest.raises(ExperimentExistsError, match=r"another name.*fetch_experiment"):
        start(tmp_path / "elsewhere/exp", runs, syncer)
    assert tree_digest(syncer.top) == before  # its mark is gone again
    start(root, runs, syncer, "resume").flush(TIMEOUT_S)


def test_of_two_experiments_that_begin_at_once_one_at_least_is_refused(
    root: Path, tmp_path: Path, runs: list[Run], syncer: Notebook
) -> None:
    syncer.stops = lambda note: note.startswith("up .tune_sync/mirror/marks")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(start, root, runs, syncer)
        assert syncer.stopped.wait(TIMEOUT_S)  # it has looked, and found itself alone
        start(tmp_path / "elsewhere/exp", runs, Notebook(syncer.top))
        syncer.go_on.set()
        with pytest.raises(ExperimentExistsError):
            first.result(TIMEOUT_S)
    assert len(list((syncer.top / ".tune_sync/mirror/marks").iterdir())) == 1


def test_a_download_that_fails_is_told_before_training(
    root: Path, runs: list[Run], syncer: Notebook
) -> None:
    syncer.failing_downloads_count = 100
    with pytest.raises(StoreError, match=r"cannot be fetched: no way back; correct .* download"):
        start(root, runs, syncer)
    assert not list(syncer.top.rglob("*.json"))
    runs[0].close()
    syncer.failing_downloads_count = 0
    start(root, runs, syncer, "resume").flush(TIMEOUT_S)


def test_a_download_that_brings_nothing_is_told_before_training(
    root: Path, runs: list[Run], syncer: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(syncer, "sync_down", lambda *args: True)
    with pytest.raises(StoreError, match=r"did not come back .* correct the syncer"):
        start(root, runs, syncer)


def test_a_place_that_nothing_can_be_sent_to_is_told_at_once(
    root: Path, runs: list[Run], syncer: Notebook
) -> None:
    syncer.fails = lambda note: True
    with pytest.raises(StoreError, match=r"nothing can be sent to .*no way to .*upload_dir"):
        start(root, runs, syncer)


COPY, REMOVE = "cp -rT {source} {target}", "rm -r {target}"


class Counting(CommandSyncer):
    """Counts how often it was asked to try again."""

    retried_count = 0

    def retry(self) -> None:
        self.retried_count += 1
        super().retry()


@pytest.mark.parametrize(
    "commands",
    [
        ("no-such-program {source} {target}", COPY, REMOVE),
        (COPY, "no-such-program {source} {target}", REMOVE),
        ("no-such-program {source} {target}",) * 2 + ("no-such-program {target}",),
    ],
)
def test_a_program_that_is_not_there_is_told_without_another_try(
    root: Path, tmp_path: Path, runs: list[Run], commands: tuple[str, str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    syncer = Counting(*commands)
    run = Run.open(root, "error", TIMEOUT_S, 1)
    runs.append(run)
    mirror = Mirror(root, str(tmp_path / "far"), syncer, 1000.0, 0.0, backoff_s=0.01)
    with pytest.raises(ConfigError, match=r"'no-such-program' cannot be run on"):
        mirror.begin(())
    assert syncer.retried_count == 0
    assert not caplog.records
