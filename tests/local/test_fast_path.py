"""Runs whose checkpoints are staged in shared memory."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import tune

from tests.hosts.searches import wait_for
from tune_sync import Checkpoint, FastPath, RunConfig, SyncConfig, staged_checkpoint, status
from tune_sync.agents.home_agent import NAMESPACE
from tune_sync.agents.memory_probe import _room, check_memory
from tune_sync.agents.names import STAGE
from tune_sync.errors import ConfigError
from tune_sync.fastpath import sizing
from tune_sync.fastpath.budget import TAKES
from tune_sync.fastpath.folder import folder_of
from tune_sync.spec import Options

STEPS, FAILS_AFTER = 5, 2
LARGE_BYTES = 32 << 20


@pytest.fixture
def shm() -> Iterator[Path]:
    """Shared memory of the test's own."""
    root = Path("/dev/shm", f"test-{uuid.uuid4().hex}")
    root.mkdir()
    yield root
    # A node agent looks every few seconds whether its run is over.
    wait_for(lambda: not list(root.iterdir()), "the end of what the run has in memory")
    root.rmdir()


def staged_in(shm: Path, **limits: Any) -> FastPath:
    made = FastPath(**limits)
    made._root = shm
    return made


def stumbles(config: dict[str, Any]) -> None:
    found, first, seen = tune.get_checkpoint(), 0, {}
    if found is not None:
        before_bytes = io_bytes()
        with found.as_directory() as directory:
            seen = {"directory": directory, "moved_bytes": io_bytes() - before_bytes}
            seen["inodes"] = inodes_below(Path(directory))
            first = int(Path(directory, "step").read_text()) + 1
            assert Path(directory, "large").stat().st_size == LARGE_BYTES
    for step in range(first, STEPS):
        if step == config.get("kill_at"):
            kill_agents()
        with tempfile.TemporaryDirectory() as made:
            Path(made, "step").write_text(str(step))
            Path(made, "large").write_bytes(bytes([step]) * LARGE_BYTES)
            tune.report({"step": step, **seen}, checkpoint=Checkpoint.from_directory(made))
        if step == FAILS_AFTER and found is None:
            staged = [file.parent for file in files_in(config["shm"], "step")]
            copies = [inodes_below(d) for d in staged if d.parts[-3] == f"checkpoint_{step:06d}"]
            Path(config["notes"]).write_text(json.dumps(copies))
            raise RuntimeError("stumbled")


def inodes_below(directory: Path) -> list[list[Any]]:
    """All files of a checkpoint."""
    return sorted([path.name, path.stat().st_ino] for path in directory.iterdir())


def io_bytes() -> int:
    """What this process has read and written until now, wherever to."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("rchar", "wchar")))


def files_in(top: str, name: str) -> list[Path]:
    """All of that name, of directories that come and go."""
    return [Path(at, name) for at, _, files in os.walk(top) if name in files]


def kill_agents() -> None:
    """As if the node had too little memory; Ray starts them again."""
    for found in ray.util.list_named_actors(all_namespaces=True):
        if found["namespace"] == NAMESPACE and found["name"].startswith(STAGE):
            with suppress(ValueError):
                ray.kill(ray.get_actor(found["name"], namespace=NAMESPACE), no_restart=False)


def fit(tmp_path: Path, fast_path: FastPath, **fields: Any) -> Any:
    sync = SyncConfig(
        wait_for="staged", fast_path=fast_path, staging_dir=tmp_path / "staging",
        sync_timeout=60, **fields,
    )  # fmt: skip
    run_config = RunConfig(
        name="exp", sync_config=sync,
        storage_path=None if fields else str(tmp_path / "home"),
        failure_config=tune.FailureConfig(max_failures=1),
    )  # fmt: skip
    space = {"kill_at": 4, "shm": str(fast_path.memory_dir), "notes": str(tmp_path / "notes")}
    tuner = tune.Tuner(stumbles, run_config=run_config, param_space=space)
    (result,) = tuner.fit()
    assert result.error is None
    for step, (checkpoint, _) in enumerate(result.best_checkpoints):
        with checkpoint.as_directory() as directory:
            assert Path(directory, "step").read_text() == str(step)
            assert Path(directory, "large").read_bytes() == bytes([step]) * LARGE_BYTES
    assert len(result.best_checkpoints) == STEPS
    return result


@pytest.mark.usefixtures("local_ray")
def test_a_trial_goes_on_from_memory_and_at_the_end_all_is_stored(
    tmp_path: Path, shm: Path
) -> None:
    result = fit(
        tmp_path, staged_in(shm, max_checkpoints_in_memory=9), upload_dir=tmp_path / "shared"
    )
    assert result.metrics["directory"].startswith(str(shm))
    before = json.loads((tmp_path / "notes").read_text())
    assert [result.metrics["inodes"]] == before, "it was copied"
    assert {name for name, _ in result.metrics["inodes"]} == {"step", "large"}
    assert result.metrics["moved_bytes"] < LARGE_BYTES / 8, "bytes of it were moved"
    wait_for(lambda: not list((tmp_path / "staging").glob("*/*")), "the end of the staging")


def hands_over(config: dict[str, Any]) -> None:
    for step in range(STEPS):
        size_bytes = LARGE_BYTES if config["is_known"] else None
        with staged_checkpoint(size_bytes) as staged:
            (staged.path / "step").write_text(str(step))
            (staged.path / "large").write_bytes(bytes([step]) * LARGE_BYTES)
            metrics = {"step": step, "directory": str(staged.path)}
            tune.report(metrics, checkpoint=staged.checkpoint)


@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize("is_known", [True, False])
def test_a_directory_in_memory_is_handed_over(tmp_path: Path, shm: Path, is_known: bool) -> None:
    sync = SyncConfig(
        upload_dir=tmp_path / "shared", wait_for="staged", staging_dir=tmp_path / "staging",
        fast_path=staged_in(shm, max_checkpoints_in_memory=9),
    )  # fmt: skip
    tuner = tune.Tuner(
        hands_over, run_config=RunConfig(name="exp", sync_config=sync),
        param_space={"is_known": is_known},
    )  # fmt: skip
    (result,) = tuner.fit()
    assert result.error is None
    made = [Path(made) for made in result.metrics_dataframe["directory"]]
    assert [path.is_relative_to(shm) for path in made] == [is_known, *[True] * (STEPS - 1)]
    for step, (checkpoint, _) in enumerate(result.best_checkpoints):
        with checkpoint.as_directory() as directory:
            assert Path(directory, "step").read_text() == str(step)
            assert Path(directory, "large").read_bytes() == bytes([step]) * LARGE_BYTES


@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize("where", ["elsewhere", pytest.param("here", marks=pytest.mark.slow)])
def test_what_finds_no_room_in_memory_arrives_all_the_same(
    tmp_path: Path, shm: Path, where: str
) -> None:
    """Also if the agent is killed: what it has is in both places."""
    fields = {"upload_dir": tmp_path / "shared"} if where == "elsewhere" else {}
    limit_bytes = LARGE_BYTES + LARGE_BYTES // 2
    fit(tmp_path, staged_in(shm, memory_limit=limit_bytes), **fields)


def looks_after_reports(config: dict[str, Any]) -> None:
    for step in range(2):
        with tempfile.TemporaryDirectory() as made:
            Path(made, "body").write_text(f"body {step}")
            tune.report({"step": step}, checkpoint=Checkpoint.from_directory(made))
        there = []
        for _ in range(2):  # as it is moved to its place, once, it may be missed
            for path in files_in(config["home"], "body"):
                with suppress(FileNotFoundError):
                    there.append(path.read_text())
        assert f"body {step}" in there, "it is on its own node only"
    (node,) = status(config["home"] + "/exp").nodes
    tune.report({"unreplicated": node.unreplicated.partition(": ")[2]})


@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize("where", [pytest.param("elsewhere", marks=pytest.mark.slow), "here"])
def test_with_no_other_node_a_replicated_report_waits_for_the_destination(
    tmp_path: Path, shm: Path, where: str
) -> None:
    home = tmp_path / "home"
    sync = SyncConfig(
        wait_for="replicated", fast_path=staged_in(shm), staging_dir=tmp_path / "staging",
        upload_dir=home if where == "elsewhere" else None,
    )  # fmt: skip
    run_config = RunConfig(
        name="exp", sync_config=sync, storage_path=None if where == "elsewhere" else str(home)
    )
    space = {"home": str(home)}
    (result,) = tune.Tuner(looks_after_reports, run_config=run_config, param_space=space).fit()
    assert result.error is None
    assert len(result.best_checkpoints) == 2
    assert result.metrics["unreplicated"] == "there is no other node in this cluster"


@pytest.mark.usefixtures("local_ray")
def test_more_memory_than_any_node_has_is_refused_before_training(
    tmp_path: Path, shm: Path
) -> None:
    with pytest.raises(ConfigError, match="no node has it") as refused:
        fit(tmp_path, staged_in(shm, memory_limit=1 << 50))
    node = ray.get_runtime_context().get_node_id()
    for part in (node, f"memory_limit={1 << 50}", "--shm-size=", "object store"):
        assert part in str(refused.value)


def test_what_other_runs_have_in_memory_does_not_refuse_the_next_one(
    shm: Path,
) -> None:
    """As the limit is theirs together."""
    attempt = folder_of(shm) / "another run" / "node" / "attempt"
    attempt.mkdir(parents=True)
    with (attempt / TAKES).open("wb") as takes:
        takes.truncate(1 << 50)
    (shm / "in use").write_bytes(bytes(1 << 20))
    room_bytes, total_bytes = _room(str(shm), "")
    assert room_bytes == total_bytes
    shutil.rmtree(folder_of(shm))
    assert _room(str(shm), "")[0] < total_bytes
    (shm / "in use").unlink()


@pytest.mark.usefixtures("local_ray")
def test_a_node_with_little_memory_is_named(
    shm: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    check_memory(Options(memory_dir=str(shm)))
    assert "--shm-size" not in caplog.text
    monkeypatch.setattr(sizing, "LEAST_BYTES", 1 << 50)
    check_memory(Options(memory_dir=str(shm)))
    assert ray.get_runtime_context().get_node_id() in caplog.text
    assert "staged on its disk" in caplog.text
    assert "--shm-size" in caplog.text
