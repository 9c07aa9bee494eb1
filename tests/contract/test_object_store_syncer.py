"""`ObjectStoreSyncer`, and the base class of all syncers, by what their methods promise."""

from __future__ import annotations

import os
import pickle
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bed.tree import tree_digest
from tune_sync import RunConfig
from tune_sync.errors import ConfigError, ImmutableError, PathRefusedError, SyncTimeoutError
from tune_sync.filesystem import SyncHandler
from tune_sync.syncers.base import BackgroundSyncer, Syncer
from tune_sync.syncers.object_store import ObjectStoreSyncer

TIMEOUT_S = 60.0


@pytest.fixture
def config(tmp_path: Path) -> Iterator[RunConfig]:
    config = RunConfig(name="exp", storage_path=str(tmp_path / "home"))
    handler: SyncHandler = config.storage_filesystem.handler
    run = handler.start()
    yield config
    run.close()


@pytest.fixture
def syncer(config: RunConfig) -> Iterator[ObjectStoreSyncer]:
    syncer = ObjectStoreSyncer(config.storage_filesystem)
    yield syncer
    syncer.close()


@pytest.fixture
def remote(config: RunConfig) -> str:
    """A directory that no one has made yet."""
    return f"{config.storage_path}/exp/trial/plots"


@pytest.fixture
def local(tmp_path: Path) -> Path:
    """A directory with all that a directory may hold."""
    root = tmp_path / "local"
    (root / "sub/deep").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "a b%20+#?'ä漢").write_bytes(os.urandom(100))
    (root / "sub/deep/large").write_bytes(os.urandom(3 << 20))
    (root / "sub/nothing").touch()
    return root


def test_a_directory_goes_up_and_comes_down_again_the_same(
    syncer: ObjectStoreSyncer, local: Path, remote: str, tmp_path: Path
) -> None:
    assert syncer.sync_up(str(local), remote)
    syncer.wait()
    assert tree_digest(remote) == tree_digest(local)
    assert syncer.sync_down(remote, str(tmp_path / "down"))
    syncer.wait()
    assert tree_digest(tmp_path / "down") == tree_digest(local)


def test_a_second_sync_sends_what_is_new_and_replaces_what_has_changed(
    syncer: ObjectStoreSyncer, local: Path, remote: str
) -> None:
    syncer.sync_up(str(local), remote)
    syncer.wait()
    (local / "sub/nothing").write_text("something")
    (local / "new").write_text("new")
    syncer.sync_up(str(local), remote)
    syncer.wait()
    assert tree_digest(remote) == tree_digest(local)


@pytest.mark.parametrize("pattern", ["sub/*", "sub", "deep"])
def test_what_is_excluded_does_not_travel_in_either_direction(
    syncer: ObjectStoreSyncer, local: Path, remote: str, tmp_path: Path, pattern: str
) -> None:
    syncer.sync_up(str(local), f"{remote}/less", exclude=[pattern])
    syncer.sync_up(str(local), f"{remote}/all")
    syncer.wait()
    syncer.sync_down(f"{remote}/all", str(tmp_path / "down"), exclude=[pattern])
    syncer.wait()
    for found in (tree_digest(f"{remote}/less"), tree_digest(tmp_path / "down")):
        assert "sub/deep/large" not in found
        assert "empty" in found
        assert ("sub/nothing" in found) == (pattern == "deep")


def test_a_checkpoint_appears_whole_when_it_is_published(
    syncer: ObjectStoreSyncer, config: RunConfig, local: Path
) -> None:
    checkpoint = f"{config.storage_path}/exp/trial/checkpoint_000000"
    syncer.sync_up(str(local), checkpoint)
    syncer.wait()
    assert not Path(checkpoint).exists()
    config.storage_filesystem.handler.publish(checkpoint)
    assert tree_digest(checkpoint) == tree_digest(local)


def test_a_second_sync_of_a_checkpoint_holds_its_own_files_alone(
    syncer: ObjectStoreSyncer, config: RunConfig, local: Path
) -> None:
    checkpoint = f"{config.storage_path}/exp/trial/checkpoint_000000"
    syncer.sync_up(str(local), checkpoint)
    syncer.wait()
    (local / "sub/nothing").unlink()
    syncer.sync_up(str(local), checkpoint)
    syncer.wait()
    config.storage_filesystem.handler.publish(checkpoint)
    assert tree_digest(checkpoint) == tree_digest(local)


def test_several_checkpoints_of_a_trial_go_up_in_one_directory(
    syncer: ObjectStoreSyncer, config: RunConfig, local: Path, tmp_path: Path
) -> None:
    """None of them is what a failed report has left."""
    names = [f"checkpoint_{number:06d}" for number in range(3)]
    for name in names:
        shutil.copytree(local, tmp_path / "trial" / name)
    syncer.sync_up(str(tmp_path / "trial"), f"{config.storage_path}/exp/trial")
    syncer.wait()
    for name in names:
        checkpoint = f"{config.storage_path}/exp/trial/{name}"
        config.storage_filesystem.handler.publish(checkpoint)
        assert tree_digest(checkpoint) == tree_digest(local)


def test_delete_removes_and_a_later_sync_brings_all_back(
    syncer: ObjectStoreSyncer, local: Path, remote: str
) -> None:
    syncer.sync_up(str(local), remote)
    assert syncer.delete(remote)
    syncer.wait()
    assert not Path(remote).exists()
    syncer.sync_up(str(local), remote)
    syncer.wait()
    assert tree_digest(remote) == tree_digest(local)


def test_a_failure_is_raised_by_wait_once_and_the_next_command_runs(
    syncer: ObjectStoreSyncer, local: Path, remote: str, tmp_path: Path
) -> None:
    assert syncer.sync_down(f"{remote}/absent", str(tmp_path / "down"))
    with pytest.raises(FileNotFoundError, match="absent"):
        syncer.wait()
    syncer.wait()
    syncer.sync_up(str(local), remote)
    syncer.wait()
    assert tree_digest(remote) == tree_digest(local)


def test_a_failure_that_nobody_waited_for_is_raised_by_the_next_command(
    syncer: ObjectStoreSyncer, local: Path, remote: str, tmp_path: Path
) -> None:
    syncer.sync_down(f"{remote}/absent", str(tmp_path / "down"))
    with pytest.raises(FileNotFoundError, match="absent"):
        syncer.sync_up(str(local), remote)


def test_what_cannot_be_sent_is_refused_at_once(
    syncer: ObjectStoreSyncer, local: Path, remote: str
) -> None:
    with pytest.raises(FileNotFoundError):
        syncer.sync_up(str(local / "absent"), remote)
    (local / "broken").symlink_to("nowhere")
    with pytest.raises(PathRefusedError, match="broken"):
        syncer.sync_up(str(local), remote)
    assert not Path(remote).exists()


def test_nothing_outside_of_the_experiment_is_written_or_removed(
    syncer: ObjectStoreSyncer, local: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for start in (
        lambda: syncer.sync_up(str(local), str(outside)),
        lambda: syncer.delete(str(outside)),
        lambda: syncer.sync_up(str(local), f"{tmp_path}/home/exp/../../outside"),
    ):
        start()
        with pytest.raises(PathRefusedError):
            syncer.wait()
    assert list(outside.iterdir()) == []


def test_a_published_checkpoint_is_not_added_to(
    syncer: ObjectStoreSyncer, config: RunConfig, local: Path
) -> None:
    handler: SyncHandler = config.storage_filesystem.handler
    checkpoint = f"{config.storage_path}/exp/trial/checkpoint_000000"
    syncer.sync_up(str(local), checkpoint)
    syncer.wait()
    handler.publish(checkpoint)
    with pytest.raises(ImmutableError, match="published already"):
        handler.publish(checkpoint)
    syncer.delete(f"{checkpoint}/sub")
    with pytest.raises(PermissionError, match="checkpoint"):
        syncer.wait()
    assert tree_digest(checkpoint) == tree_digest(local)


def test_it_needs_the_filesystem_of_a_run(local: Path, remote: str) -> None:
    with pytest.raises(ConfigError, match="filesystem of a run"):
        ObjectStoreSyncer().sync_up(str(local), remote)


class Steps(BackgroundSyncer):
    """A syncer whose commands note what they do, once they are let go."""

    def __init__(self, sync_period: float = 300.0, sync_timeout: float = TIMEOUT_S) -> None:
        super().__init__(sync_period, sync_timeout)
        self.done: list[str] = []
        self.go_on = threading.Event()
        self.failures: list[Exception] = []

    def sync_up(self, local_dir: str, remote_dir: str, exclude: list[str] | None = None) -> bool:
        return self._start(lambda: self._act(f"up {local_dir}"))

    def sync_down(self, remote_dir: str, local_dir: str, exclude: list[str] | None = None) -> bool:
        return self._start(lambda: self._act(f"down {remote_dir}"))

    def delete(self, remote_dir: str) -> bool:
        return self._start(lambda: self._act(f"delete {remote_dir}"))

    def _act(self, what: str) -> None:
        assert self.go_on.wait(TIMEOUT_S)
        if self.failures:
            raise self.failures.pop(0)
        self.done.append(what)


def test_a_command_starts_at_once_and_the_next_waits_for_it() -> None:
    steps = Steps()
    assert steps.sync_up("1", "")
    assert steps.done == []
    later = threading.Thread(target=steps.sync_up, args=("2", ""))
    later.start()
    later.join(0.05)
    assert later.is_alive(), "neither skipped nor run beside the first"
    steps.go_on.set()
    later.join(TIMEOUT_S)
    steps.wait()
    assert steps.done == ["up 1", "up 2"]


def test_wait_gives_up_after_the_timeout_and_may_be_called_again() -> None:
    steps = Steps(sync_timeout=0.05)
    steps.wait()
    steps.sync_up("1", "")
    with pytest.raises(SyncTimeoutError, match="sync_timeout"):
        steps.wait()
    with pytest.raises(TimeoutError):
        steps.wait(timeout=0.01)
    steps.go_on.set()
    steps.wait(timeout=TIMEOUT_S)
    assert steps.done == ["up 1"]


def test_retry_runs_the_last_command_again() -> None:
    steps = Steps()
    steps.go_on.set()
    with pytest.raises(RuntimeError, match="no command"):
        steps.retry()
    steps.failures = [OSError("once"), OSError("twice")]
    steps.delete("x")
    steps.wait_or_retry(max_retries=2, backoff_s=0)
    assert steps.done == ["delete x"]


def test_retries_end_with_the_last_error() -> None:
    steps = Steps()
    steps.go_on.set()
    steps.failures = [OSError(str(number)) for number in range(3)]
    steps.sync_down("x", "y")
    with pytest.raises(RuntimeError, match="3 times, last: 2") as failed:
        steps.wait_or_retry(max_retries=2, backoff_s=0)
    assert isinstance(failed.value.__cause__, OSError)


def test_syncs_if_needed_keep_the_period() -> None:
    steps = Steps(sync_period=1000.0)
    steps.go_on.set()
    assert steps.sync_up_if_needed("1", "")
    assert not steps.sync_up_if_needed("2", "")
    assert steps.sync_down_if_needed("3", "")
    assert not steps.sync_down_if_needed("4", "")
    steps.reset()
    assert steps.sync_up_if_needed("5", "")
    steps.wait()
    assert steps.done == ["up 1", "down 3", "up 5"]


def test_a_syncer_pickles_without_what_is_under_way() -> None:
    steps = Steps(sync_period=7.0)
    steps.go_on.set()
    steps.sync_up("1", "")
    steps.wait()
    state = steps.__getstate__()
    assert state["_thread"] is None
    assert state["sync_period"] == 7.0
    twin = pickle.loads(pickle.dumps(ObjectStoreSyncer(sync_period=7.0)))
    assert twin.sync_period == 7.0


def test_a_syncer_without_background_work_has_nothing_to_wait_for_and_no_retry() -> None:
    class Direct(Syncer):
        def sync_up(self, *args: object) -> bool:
            return True

        sync_down = delete = sync_up

    direct = Direct()
    direct.wait()
    direct.close()
    with pytest.raises(NotImplementedError, match="Direct"):
        direct.retry()
