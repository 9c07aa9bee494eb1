"""A restore goes on from the newest whole checkpoint at home, whatever the saved state names."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import tune
from ray.tune.experiment import Trial

from tests.bed.tree import Entry, tree_digest
from tests.hosts.drivers.trainables import read_checkpoint
from tests.hosts.searches import wait_for
from tests.local import trainables
from tests.local.trainables import STEPS
from tests.unit.restored_run import MINE, OTHER, Experiment
from tests.unit.staged import placed
from tune_sync import run_config_kwargs
from tune_sync.homes.commit import Committer
from tune_sync.homes.store import LocalStore
from tune_sync.layout import checkpoint_name

NEVER_S = "100000"  # Ray saves its state at the first step, and not again
HOLD_AFTER = 2


RECOVERY = ("finished publishing", ": dropped ")


class Kept(logging.Handler):
    """Keeps warnings, apart from what the moment of the kill left to recover."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if not any(recovered in line for recovered in RECOVERY):
            self.lines.append(line)


@pytest.fixture
def warnings() -> Iterator[list[str]]:
    """What tune_sync warns of."""
    kept = Kept()
    logging.getLogger("ray.tune_sync").addHandler(kept)
    yield kept.lines
    logging.getLogger("ray.tune_sync").removeHandler(kept)


def checkpoints(root: Path) -> list[Path]:
    return sorted(root.glob("*/checkpoint_*"))


def steps(root: Path) -> dict[str, int]:
    return {path.name: read_checkpoint(path)["step"] for path in checkpoints(root)}


def digests(root: Path) -> dict[str, dict[str, Entry]]:
    return {str(path.relative_to(root)): tree_digest(path) for path in checkpoints(root)}


def published(root: Path, number: int) -> bool:
    return any(root.glob(f".tune_sync/manifests/*/{checkpoint_name(number)}.json"))


def drive_until_killed(
    storage: Path, trainable: str, *, period_s: str = NEVER_S, **checkpoint: Any
) -> Path:
    """Kill a driver once its trial holds; returns its experiment."""
    if trainable == "Holds":
        checkpoint |= {"checkpoint_frequency": 1}
    return drive_until(
        lambda: published(storage / "x", HOLD_AFTER), storage, trainable,
        space={"hold_after": HOLD_AFTER}, checkpoint=checkpoint, period_s=period_s,
    )  # fmt: skip


def drive_until(
    holds: Callable[[], bool], storage: Path, trainable: str, *, space: dict[str, Any],
    checkpoint: dict[str, Any], sync: dict[str, Any] | None = None, period_s: str = "auto",
) -> Path:  # fmt: skip
    """Kill a driver once something holds; returns its experiment."""
    argv = [sys.executable, "-m", "tests.local.drivers.to_be_killed", str(storage), trainable]
    env = {**os.environ, "PYTHONPATH": os.getcwd()}
    if period_s != "auto":
        env["TUNE_GLOBAL_CHECKPOINT_S"] = period_s
    env["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    argv += [json.dumps(checkpoint), json.dumps(space), *([json.dumps(sync)] if sync else [])]
    process = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(holds, "checkpoints", 180)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    return storage / "x"


def forget_logs() -> None:
    """As if it was another Ray: what its loggers wrote on this node is not found any more."""
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    logs = list(session.glob("artifacts/*/x/driver_artifacts"))
    assert logs
    for each in logs:
        shutil.rmtree(each)


def restore(root: Path, trainable: str) -> tune.Result:
    (result,) = tune.Tuner.restore(
        str(root), getattr(trainables, trainable), resume_errored=True
    ).fit()
    assert result.error is None
    return result


@pytest.mark.lowest
@pytest.mark.parametrize("trainable", ["holds", "Holds"])
def test_what_no_state_names_is_gone_on_from_and_stays_as_it_is(
    local_ray: None, tmp_path: Path, trainable: str, warnings: list[str]
) -> None:
    root = drive_until_killed(tmp_path, trainable)
    state = "".join(path.read_text() for path in root.glob("experiment_state-*.json"))
    assert state
    assert "checkpoint_00000" not in state
    before = digests(root)
    assert len(before) == HOLD_AFTER + 1
    if trainable == "holds":
        forget_logs()

    result = restore(root, trainable)
    assert (result.metrics["step"], result.metrics["resumed_at"]) == (STEPS - 1, HOLD_AFTER + 1)
    assert result.metrics["training_iteration"] == STEPS
    assert steps(root) == {checkpoint_name(number): number for number in range(STEPS)}
    assert digests(root).items() >= before.items()
    assert warnings == []
    known = [(Path(c.path).name, metrics["step"]) for c, metrics in result.best_checkpoints]
    assert known == [(checkpoint_name(number), number) for number in range(STEPS)]
    rows = result.metrics_dataframe
    assert list(zip(rows["training_iteration"], rows["step"], strict=True)) == [
        (number + 1, number) for number in range(STEPS)
    ], "also of those that were reported since the state was saved"


def test_tune_run_goes_on_from_what_no_state_names(local_ray: None, tmp_path: Path) -> None:
    root = drive_until_killed(tmp_path, "holds")
    before = digests(root)
    kwargs = run_config_kwargs(storage_path=tmp_path, name="x", on_existing="resume")
    analysis = tune.run(trainables.holds, resume=True, verbose=0, **kwargs)
    (trial,) = analysis.trials
    assert trial.last_result["resumed_at"] == HOLD_AFTER + 1
    assert steps(root) == {checkpoint_name(number): number for number in range(STEPS)}
    assert digests(root).items() >= before.items()


@pytest.fixture(scope="module")
def killed(local_ray: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A restored and finished experiment of six checkpoints; its copies are made older."""
    root = drive_until_killed(tmp_path_factory.mktemp("killed"), "holds")
    restore(root, "holds")
    return root


def drop(root: Path, *numbers: int, manifests: bool = True) -> None:
    for path in checkpoints(root):
        if int(path.name[-6:]) in numbers:
            shutil.rmtree(path)
    for path in root.glob(".tune_sync/manifests/*/*.json") if manifests else ():
        if int(path.stem[-6:]) in numbers:
            path.unlink()


@pytest.fixture
def fallen(killed: Path, tmp_path: Path) -> Path:
    """The state names checkpoint 3 of an unfinished trial."""
    root = tmp_path / "x"
    subprocess.run(["cp", "-a", str(killed), str(root)], check=True)
    return root


def set_back(root: Path, index: int) -> None:
    """Make the saved state that of a run which was killed after a checkpoint."""
    (state,) = sorted(root.glob("experiment_state-*.json"))[-1:]
    for other in root.glob("experiment_state-*.json"):
        if other != state:
            other.unlink()
    saved = json.loads(state.read_text())
    ((trial, metadata),) = saved["trial_data"]
    fields = json.loads(trial)
    fields["status"] = "RUNNING"
    saved["trial_data"] = [[json.dumps(fields), older(metadata, index)]]
    state.write_text(json.dumps(saved))


def older(metadata: str, index: int) -> str:
    """Ray's record of a trial, without the checkpoints after one."""
    from ray import cloudpickle

    fields = json.loads(metadata)
    manager = cloudpickle.loads(bytes.fromhex(fields["checkpoint_manager"]["value"]))
    manager._checkpoint_results = manager._checkpoint_results[: index + 1]
    manager._latest_checkpoint_result = manager._checkpoint_results[-1]
    fields["checkpoint_manager"]["value"] = cloudpickle.dumps(manager).hex()
    return json.dumps(fields)


@pytest.mark.parametrize(
    ("gone", "no_manifest", "goes_on_from"), [((3, 5), 5, 4), ((3, 4, 5), None, 2)]
)
def test_where_the_named_checkpoint_is_gone_the_newest_whole_one_counts(
    fallen: Path, warnings: list[str], gone: tuple[int, ...], no_manifest: int | None,
    goes_on_from: int,
) -> None:  # fmt: skip
    set_back(fallen, 3)
    drop(fallen, *(number for number in gone if number != no_manifest))
    for path in fallen.glob(f".tune_sync/manifests/*/{checkpoint_name(no_manifest or 99)}.json"):
        path.unlink()
    before = {name: tree for name, tree in digests(fallen).items() if not name.endswith("5")}
    result = restore(fallen, "holds")
    assert result.metrics["resumed_at"] == goes_on_from + 1
    assert digests(fallen).items() >= before.items()
    (warning,) = [line for line in warnings if "has no manifest" not in line]
    assert len(warnings) == 1 + (no_manifest is not None)
    assert re.search(rf"checkpoint_000003 is gone.*going on from .*{goes_on_from}$", warning)


def test_one_that_lost_a_file_is_not_gone_on_from(fallen: Path, warnings: list[str]) -> None:
    set_back(fallen, 3)
    (broken,) = fallen.glob("*/checkpoint_000005")
    (broken / "blob.bin").unlink()
    result = restore(fallen, "holds")
    assert result.metrics["resumed_at"] == 5
    assert ["is not whole any more" in line for line in warnings] == [True]


@pytest.mark.parametrize("manifest", [None, b'{"format_ver'])
def test_one_without_a_readable_manifest_does_not_count_and_is_not_written_over(
    fallen: Path, warnings: list[str], manifest: bytes | None
) -> None:
    set_back(fallen, 3)
    (file,) = fallen.glob(".tune_sync/manifests/*/checkpoint_000005.json")
    file.unlink() if manifest is None else file.write_bytes(manifest)
    before = digests(fallen)
    assert restore(fallen, "holds").metrics["resumed_at"] == 5
    assert digests(fallen).items() >= before.items()
    (warning,) = warnings
    assert "checkpoint_000005" in warning
    assert "does not count" in warning


def test_the_named_one_is_not_gone_on_from_either_if_it_lost_a_file(
    fallen: Path, warnings: list[str]
) -> None:
    set_back(fallen, 3)
    drop(fallen, 4, 5)
    (broken,) = fallen.glob("*/checkpoint_000003")
    (broken / "blob.bin").unlink()
    assert restore(fallen, "holds").metrics["resumed_at"] == 3


def leave_behind(root: Path, number: int) -> None:
    """As if a checkpoint had not been deleted yet: it is published still."""
    key = f"{checkpoints(root)[0].parent.name}/{checkpoint_name(number)}"
    if not (root / key).exists():
        committer = Committer(LocalStore(root))
        committer.record(placed(committer, {"a": b"1"}, key))


def test_what_was_about_to_be_deleted_goes_at_the_restore(local_ray: None, tmp_path: Path) -> None:
    root = drive_until_killed(tmp_path, "holds", num_to_keep=1)
    leave_behind(root, 0)
    assert len(checkpoints(root)) > 1
    restore(root, "holds")
    assert list(steps(root)) == [checkpoint_name(STEPS - 1)]


def test_a_trial_that_was_saved_before_it_had_a_directory_gets_its_own(
    local_ray: None, tmp_path: Path
) -> None:
    experiment = Experiment(tmp_path)
    first = experiment.trial("", trial_id="1")
    second = experiment.trial("", trial_id="2")
    ended = experiment.trial("", trial_id="3", status=Trial.TERMINATED)
    fresh = experiment.trial("", trial_id="4")
    experiment.publish(MINE, 0)
    experiment.publish(OTHER, 0, 1)
    experiment.publish("train_3_8_2026", 0)
    experiment.adopt(first, second, ended, fresh)
    assert first.checkpoint.path == f"{experiment.root}/{MINE}/checkpoint_000000"
    assert second.checkpoint.path == f"{experiment.root}/{OTHER}/checkpoint_000001"
    assert ended.relative_logdir is None
    assert fresh.relative_logdir is None
    experiment.run.close()
