"""Threads of one process that report at once: none takes another one's checkpoint from it."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest
from fsspec.implementations.local import LocalFileSystem

from tests.unit.restored_run import Experiment
from tests.unit.test_uploads import CHECKPOINT, FullHome
from tune_sync.errors import NotWholeError, StoreFullError
from tune_sync.homes.home import LocalHome
from tune_sync.transfer.uploads import Uploads

LATER = ["trial/checkpoint_000001", "trial/checkpoint_000002"]
TIMEOUT_S = 60.0

Elsewhere = Callable[[Callable[[], Any]], Any]


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    """Calls something in another thread, which lives on, and waits for it."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda call: pool.submit(call).result(TIMEOUT_S)


@pytest.fixture
def experiment(tmp_path: Path) -> Iterator[Experiment]:
    made = Experiment(tmp_path)
    yield made
    made.filesystem.handler.run.close()


def write(experiment: Experiment, key: str) -> None:
    with experiment.filesystem.open_output_stream(f"{experiment.root}/{key}") as stream:
        stream.write(b"x")


def test_a_checkpoint_between_two_of_its_files_is_whole_whatever_others_report(
    experiment: Experiment, elsewhere: Elsewhere
) -> None:
    filesystem, handler = experiment.filesystem, experiment.filesystem.handler
    path = f"{experiment.root}/{CHECKPOINT}"
    elsewhere(lambda: filesystem.create_dir(path))
    elsewhere(lambda: write(experiment, f"{CHECKPOINT}/first"))
    for later in LATER:
        handler.barrier()  # seals what is there of the other one, too
        filesystem.create_dir(f"{experiment.root}/{later}")
    elsewhere(lambda: write(experiment, f"{CHECKPOINT}/second"))
    elsewhere(lambda: handler.barrier(path))
    handler.publish(path)
    assert sorted(file.name for file in Path(path).iterdir()) == ["first", "second"]


def test_what_its_thread_left_is_not_gone_on_with_by_another_one(
    experiment: Experiment, elsewhere: Elsewhere
) -> None:
    """It would hold the rest alone, and be taken for whole."""
    filesystem, handler = experiment.filesystem, experiment.filesystem.handler
    path = f"{experiment.root}/{CHECKPOINT}"
    filesystem.create_dir(path)
    elsewhere(lambda: write(experiment, f"{CHECKPOINT}/first"))
    filesystem.create_dir(f"{experiment.root}/{LATER[0]}")
    for go_on in (lambda: write(experiment, f"{CHECKPOINT}/second"), lambda: handler.barrier(path)):
        with pytest.raises(NotWholeError, match="given up half way"):
            elsewhere(go_on)
    filesystem.create_dir(path)
    for name in ("first", "second"):
        elsewhere(partial(write, experiment, f"{CHECKPOINT}/{name}"))
    handler.barrier(path)
    handler.publish(path)
    assert sorted(file.name for file in Path(path).iterdir()) == ["first", "second"]


def test_directories_may_be_made_before_the_files_of_any(experiment: Experiment) -> None:
    """As copies by fsspec do. Nothing was in the first one yet, and all of it comes."""
    filesystem, paths = experiment.filesystem, [f"{experiment.root}/{key}" for key in LATER]
    for path in paths:
        filesystem.create_dir(path)
        for name in ("below", "empty"):
            filesystem.create_dir(f"{path}/{name}")
    for key in LATER:
        write(experiment, f"{key}/first")
        write(experiment, f"{key}/below/second")
    for path in paths:
        filesystem.handler.barrier(path)
        filesystem.handler.publish(path)
        found = sorted(str(file.relative_to(path)) for file in Path(path).rglob("*"))
        assert found == ["below", "below/second", "empty", "first"]


def test_where_the_first_file_failed_the_rest_is_not_all(tmp_path: Path) -> None:
    uploads = Uploads()
    stream = uploads.begin(FullHome(tmp_path), CHECKPOINT, 0).open("large")
    stream.write(bytes(9 << 20))
    with suppress(StoreFullError):  # pyarrow drops it
        stream.close()
    uploads.drop_left(LATER[0])
    with pytest.raises(NotWholeError):
        uploads.find(CHECKPOINT)


@pytest.mark.parametrize("begin_s", [0.0, 0.05])
def test_threads_of_arrow_that_make_directories_of_one_checkpoint_begin_it_once(
    experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin_s: float
) -> None:
    """They make its directories at once, and not itself, where it is in a larger copy."""
    names, home = ["a", "b", "c", "empty"], experiment.filesystem.handler.run.home
    for name in names:
        (tmp_path / "source/checkpoint_000000" / name).mkdir(parents=True)
    (tmp_path / "source/checkpoint_000000/a/file").write_text("all")
    begin = home.begin

    def late(checkpoint: str) -> Any:
        time.sleep(begin_s)
        return begin(checkpoint)

    monkeypatch.setattr(home, "begin", late)
    pafs.copy_files(
        str(tmp_path / "source"), f"{experiment.root}/trial",
        source_filesystem=pafs.LocalFileSystem(), destination_filesystem=experiment.filesystem,
    )  # fmt: skip
    experiment.filesystem.handler.publish(f"{experiment.root}/{CHECKPOINT}")
    assert sorted(path.name for path in (experiment.root / CHECKPOINT).iterdir()) == names


def test_a_failure_that_another_thread_was_told_of_fails_the_report_however_much_others_report(
    tmp_path: Path, elsewhere: Elsewhere
) -> None:
    uploads, full, home = Uploads(), FullHome(tmp_path), LocalHome(tmp_path)

    def copy() -> None:
        stream = uploads.begin(full, CHECKPOINT, 0).open("large")
        stream.write(bytes(9 << 20))
        with suppress(StoreFullError):  # pyarrow drops it
            stream.close()

    def end() -> None:
        uploads.copied(CHECKPOINT, 1)
        uploads.seal(CHECKPOINT)

    elsewhere(copy)
    with pytest.raises(StoreFullError):
        uploads.seal()
    for later in LATER:
        uploads.begin(home, later, 0)
    with pytest.raises(StoreFullError):
        elsewhere(end)
    elsewhere(lambda: uploads.begin(home, "other/checkpoint_000000", 0))
    assert uploads.find(CHECKPOINT) is None  # nothing more is said of it


class BadFile(BytesIO):
    def read(self, *args: Any) -> bytes:
        raise OSError(errno.EIO, "cannot be read")


class OnceBad(LocalFileSystem):  # type: ignore[misc]
    """The first file that is opened cannot be read."""

    is_good = False

    def open(self, path: str, *args: Any, **named: Any) -> Any:
        if self.is_good:
            return super().open(path, *args, **named)
        self.is_good = True
        return BadFile()


def test_a_copy_by_threads_of_arrow_can_be_made_again_after_a_file_could_not_be_read(
    experiment: Experiment, tmp_path: Path
) -> None:
    """What it was copied into is dropped then, and never closed."""
    (tmp_path / "source/checkpoint_000000").mkdir(parents=True)
    (tmp_path / "source/checkpoint_000000/file").write_text("all")

    def copy() -> None:
        pafs.copy_files(
            str(tmp_path / "source"), f"{experiment.root}/trial",
            source_filesystem=source, destination_filesystem=experiment.filesystem,
        )  # fmt: skip

    source = pafs.PyFileSystem(pafs.FSSpecHandler(OnceBad(skip_instance_cache=True)))
    with pytest.raises(OSError, match="cannot be read"):
        copy()
    copy()
    experiment.filesystem.handler.publish(f"{experiment.root}/{CHECKPOINT}")
    assert (experiment.root / CHECKPOINT / "file").read_text() == "all"


def test_a_copy_by_threads_of_arrow_can_be_made_again(
    experiment: Experiment, tmp_path: Path
) -> None:
    """They live on when it is over, and the next one gets others."""
    source, names = tmp_path / "source", [f"checkpoint_{n:06d}" for n in range(3)]
    for name in names:
        (source / name).mkdir(parents=True)
        (source / name / "file").write_text(name)
    for _ in range(5):
        pafs.copy_files(
            str(source), f"{experiment.root}/trial",
            source_filesystem=pafs.LocalFileSystem(), destination_filesystem=experiment.filesystem,
        )  # fmt: skip
    for name in names:
        experiment.filesystem.handler.publish(f"{experiment.root}/trial/{name}")
        assert (experiment.root / "trial" / name / "file").read_text() == name
