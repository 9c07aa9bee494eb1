"""Threads of one process that report at once: none takes another one's checkpoint from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

from tests.unit.restored_run import Experiment
from tests.unit.test_uploads import CHECKPOINT, FullHome
from tune_sync.errors import NotWholeError, StoreFullError
from tune_sync.homes.home import LocalHome
from tune_sync.transfer.uploads import Uploads

LATER = ["trial/checkpoint_000001", "trial/checkpoint_000002"]
TIMEOUT_S = 10.0

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
