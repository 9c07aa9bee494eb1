"""Of a trial's working directory all is stored that can be, and the rest is named."""

from __future__ import annotations

from pathlib import Path

import pyarrow.fs as pafs
import pytest

from tests.unit.restored_run import MINE, Experiment, Here
from tune_sync.artifacts import DRIVER_FILES
from tune_sync.errors import PathRefusedError
from tune_sync.filesystem import SyncHandler
from tune_sync.layout import MAX_DEPTH
from tune_sync.run_filesystem import RunFileSystem
from tune_sync.spec import Options, Spec


class Worker:
    """Of a process of a trial, what copies its working directory, as Ray does."""

    def __init__(self, tmp_path: Path) -> None:
        self.directory, self.home = tmp_path / "here", tmp_path / "results" / "x"
        self.directory.mkdir()
        (self.directory / "good").write_text("good")
        spec = Spec(f"worker {tmp_path}", str(self.home.parent), "x", "", None, Options())
        self.handler = SyncHandler(spec, Here())
        self.filesystem = RunFileSystem(self.handler)

    def copy(self) -> set[str]:
        """Returns which files are at home then."""
        target = f"{self.home}/{MINE}"
        self.filesystem.create_dir(target)
        local = pafs.LocalFileSystem()
        pafs.copy_files(str(self.directory), target, local, self.filesystem)
        there = Path(target)
        return {str(p.relative_to(there)) for p in there.rglob("*") if p.is_file()}


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return Worker(tmp_path)


def test_what_is_too_deep_is_named_once_and_all_else_is_stored(worker: Worker) -> None:
    deep = worker.directory.joinpath(*"d" * 40)
    deep.mkdir(parents=True)
    for name in "one", "two":
        (deep / name).touch()
    for _ in range(2):
        assert worker.copy() == {"good"}
    (key,) = worker.handler.files.unstored
    assert key == "/".join([MINE, *"d" * MAX_DEPTH])
    assert f"more than {MAX_DEPTH}" in worker.handler.files.unstored[key]


def test_what_a_link_to_its_own_directory_multiplies_is_stored_to_a_depth_and_then_named(
    worker: Worker,
) -> None:
    (worker.directory / "loop").symlink_to(".")
    assert {"good", "loop/good"} <= worker.copy()
    assert len(worker.handler.files.unstored) == 2  # the file and the link, both too deep


def test_a_file_with_the_name_of_a_checkpoint_is_named_and_all_else_is_stored(
    worker: Worker,
) -> None:
    (worker.directory / "checkpoint_000007").write_text("mine")
    assert worker.copy() == {"good"}
    why = worker.handler.files.unstored[f"{MINE}/checkpoint_000007"]
    assert "a file cannot have the name of a checkpoint" in why


def test_a_file_that_is_reported_as_a_checkpoint_is_refused(worker: Worker) -> None:
    path = f"{worker.home}/{MINE}/checkpoint_000007"
    worker.filesystem.create_dir(path)
    with pytest.raises(PathRefusedError, match="a file was reported as a checkpoint"):
        worker.filesystem.open_output_stream(path)


def test_a_path_of_a_checkpoint_that_is_too_deep_is_refused(worker: Worker) -> None:
    path = "/".join([str(worker.home), MINE, "checkpoint_000007", *"d" * MAX_DEPTH])
    with pytest.raises(PathRefusedError):
        worker.filesystem.create_dir(path)
    with pytest.raises(PathRefusedError):
        worker.filesystem.open_output_stream(f"{path}/file")


def test_a_file_of_the_drivers_is_not_replaced_by_one_of_the_trial_which_is_warned_of_once(
    worker: Worker, caplog: pytest.LogCaptureFixture
) -> None:
    (worker.home / MINE).mkdir(parents=True)
    for name in DRIVER_FILES:
        (worker.directory / name).write_text("mine")
        (worker.home / MINE / name).write_text("the driver's")
    (worker.directory / "sub").mkdir()
    (worker.directory / "sub/result.json").write_text("mine")
    for _ in range(2):
        assert worker.copy() == {"good", "sub/result.json", *DRIVER_FILES}
    for name in DRIVER_FILES:
        assert (worker.home / MINE / name).read_text() == "the driver's"
        assert caplog.text.count(f"{MINE}/{name}, which the trial wrote, is not stored") == 1
    assert not worker.handler.files.unstored


def test_the_driver_writes_them(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    experiment = Experiment(tmp_path)
    path = f"{experiment.root}/{MINE}/error.txt"
    try:
        with experiment.filesystem.open_output_stream(path) as file:
            file.write(b"the driver's")
    finally:
        experiment.run.close()
    assert Path(path).read_text() == "the driver's"
    assert "is not stored" not in caplog.text
