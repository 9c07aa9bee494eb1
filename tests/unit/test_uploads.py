"""What a process knows of the attempts of others."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest

from tests.unit.restored_run import Experiment
from tune_sync import layout
from tune_sync.errors import ConfigError, NotWholeError, StoreFullError, SyncTimeoutError
from tune_sync.homes.digests import digest_of
from tune_sync.homes.home import LocalHome
from tune_sync.manifest import Seal
from tune_sync.transfer.upload import SMALL_BYTES, CheckpointUpload
from tune_sync.transfer.uploads import CHECKPOINTS_KEPT, SENT_COUNT, TOLD_COUNT, Uploads

RANK_COUNT = 8


def report(worker: Uploads, coordinator: Uploads, checkpoint: str, attempt: str, rank: int) -> None:
    """A worker seals an attempt, and pickles all that it knows with its report."""
    worker.heard_of([(checkpoint, attempt, rank)])
    coordinator.heard_of(worker.reported())


def test_the_parts_of_all_ranks_are_known_however_often_they_reported() -> None:
    coordinator, workers = Uploads(), [Uploads() for _ in range(RANK_COUNT)]
    for step in range(3 * CHECKPOINTS_KEPT):
        checkpoint = f"trial/checkpoint_{step:06d}"
        for rank, worker in enumerate(workers):
            report(worker, coordinator, checkpoint, f"{step}-{rank}", rank)
        assert sorted(coordinator.take(checkpoint)) == [f"{step}-{r}" for r in range(RANK_COUNT)]


@pytest.mark.parametrize("lag", [1, 2, CHECKPOINTS_KEPT - TOLD_COUNT])
def test_a_rank_that_lags_pushes_out_nothing_of_those_before_it(lag: int) -> None:
    """Ray Train polls its workers one by one, and each tells what it told before once more."""
    coordinator, workers = Uploads(), [Uploads() for _ in range(RANK_COUNT)]
    for step in range(3 * CHECKPOINTS_KEPT + lag):
        for rank, worker in enumerate(workers[:-1]):
            report(worker, coordinator, f"trial/checkpoint_{step:06d}", f"{step}-{rank}", rank)
        if (at := step - lag) >= 0:
            checkpoint, last = f"trial/checkpoint_{at:06d}", RANK_COUNT - 1
            report(workers[last], coordinator, checkpoint, f"{at}-{last}", last)
            assert sorted(coordinator.take(checkpoint)) == [f"{at}-{r}" for r in range(RANK_COUNT)]


def test_of_trials_that_have_ended_only_what_was_not_taken_is_remembered() -> None:
    uploads, count = Uploads(), 10
    for number in range(count):
        for step in (0, 1):
            uploads.heard_of([(f"trial_{number}/checkpoint_{step:06d}", f"{number}-{step}", 0)])
            if step or number:
                uploads.take(f"trial_{number}/checkpoint_{step:06d}")
        uploads.forget(f"trial_{number}")
    assert uploads.reported_at("trial_0/checkpoint_000000") == ["0-0"]
    uploads.heard_of([("trial_1/inner/checkpoint_000000", "inner", 0)])
    uploads.take("trial_1/inner/checkpoint_000000")
    uploads.forget("trial_1")
    assert list(uploads._reported) == ["trial_0"]
    uploads.forget("none")


def test_what_is_remembered_and_told_of_a_trial_is_bounded() -> None:
    uploads, count = Uploads(), 10 * CHECKPOINTS_KEPT
    names = [f"trial/checkpoint_{step:06d}" for step in range(count)]
    for name in names:
        uploads.heard_of([(name, "attempt", 0)])
    assert [c for c, _, _ in uploads.reported()] == names[-TOLD_COUNT:]
    assert [c for c in names if uploads.take(c)] == names[-CHECKPOINTS_KEPT:]


def test_what_travels_along_is_bounded_however_many_trials_there_are() -> None:
    worker = Uploads()
    for trial in range(10 * SENT_COUNT):
        worker.heard_of([(f"trial{trial}/checkpoint_000000", "attempt", 0)])
    worker.heard_of([("trial0/checkpoint_000001", "attempt", 0)])
    told = [checkpoint for checkpoint, _, _ in worker.reported()]
    assert len(told) == SENT_COUNT
    assert told[-2:] == ["trial0/checkpoint_000000", "trial0/checkpoint_000001"]


def test_reports_of_other_trials_push_out_nothing_that_is_still_to_be_taken() -> None:
    """A clone may be placed long after it was reported, when its trial has waited for room."""
    driver = Uploads()
    driver.heard_of([("cloned/checkpoint_000000", "a", 0)])
    for trial in range(SENT_COUNT):
        long = [(f"trial{trial}/checkpoint_{n:06d}", f"{n}", 0) for n in range(SENT_COUNT)]
        driver.heard_of(long)
        assert driver.take(long[-1][0]) == [long[-1][1]]
    assert driver.reported_at("cloned/checkpoint_000000") == ["a"]
    assert driver.take("cloned/checkpoint_000000") == ["a"]


def test_a_driver_tells_its_trials_nothing_of_what_others_reported(tmp_path: Path) -> None:
    handler = Experiment(tmp_path).filesystem.handler
    try:
        handler.uploads.heard_of([(CHECKPOINT, "a", 0)])
        _, (_, _, told) = handler.__reduce__()
        assert told == ()
        assert handler.uploads.take(CHECKPOINT) == ["a"]
    finally:
        handler.run.close()


def test_what_is_taken_is_forgotten() -> None:
    uploads = Uploads()
    uploads.heard_of([(CHECKPOINT, "a", 0), (CHECKPOINT, "b", 1)])
    assert uploads.take("trial/checkpoint_000000") == ["a", "b"]
    assert uploads.take("trial/checkpoint_000000") == []


CHECKPOINT = "trial/checkpoint_000000"


def begin_elsewhere(uploads: Uploads, home: LocalHome, until: threading.Event) -> threading.Thread:
    """Another thread opens an attempt, and lives on until it is told."""
    begun = threading.Event()

    def live() -> None:
        uploads.begin(home, CHECKPOINT, 0)
        begun.set()
        until.wait()

    thread = threading.Thread(target=live)
    thread.start()
    begun.wait()
    return thread


def test_of_two_threads_that_report_one_name_the_second_is_refused_and_the_first_goes_on(
    tmp_path: Path,
) -> None:
    uploads, home, until = Uploads(), LocalHome(tmp_path), threading.Event()
    thread = begin_elsewhere(uploads, home, until)
    first = uploads.find(CHECKPOINT)
    assert first is not None
    try:
        with pytest.raises(ConfigError, match=r"another thread .* report from one thread"):
            uploads.begin(home, CHECKPOINT, 0)
        assert uploads.find(CHECKPOINT) is first
        first.add_small("a", b"1", "digest")
        uploads.seal()
        assert uploads.take(CHECKPOINT) == [first.attempt]
        (left,) = (tmp_path / ".tune_sync/staging" / CHECKPOINT).iterdir()
        assert left.name == first.attempt
    finally:
        until.set()
        thread.join()


def test_an_attempt_whose_thread_is_over_or_whose_seal_is_made_is_replaced(tmp_path: Path) -> None:
    uploads, home, until = Uploads(), LocalHome(tmp_path), threading.Event()
    thread = begin_elsewhere(uploads, home, until)
    uploads.seal()
    assert uploads.begin(home, CHECKPOINT, 0) is uploads.find(CHECKPOINT)
    until.set()
    thread.join()
    uploads = Uploads()
    begin_elsewhere(uploads, home, until).join()
    assert uploads.begin(home, CHECKPOINT, 0) is uploads.find(CHECKPOINT)


class FullHome(LocalHome):
    """Tells that its disk is full when a large file ends."""

    def finish(self, key: str) -> None:
        raise StoreFullError(errno.ENOSPC, "the disk of the home is full")


def test_what_went_wrong_is_told_also_if_another_thread_begins_meanwhile(tmp_path: Path) -> None:
    uploads, home = Uploads(), FullHome(tmp_path)
    stream = uploads.begin(home, "trial/checkpoint_000001", 0).open("large")
    stream.write(bytes(9 << 20))
    with suppress(StoreFullError):  # pyarrow drops it
        stream.close()
    go_on = threading.Event()
    go_on.set()
    begin_elsewhere(uploads, home, go_on).join()
    with pytest.raises(StoreFullError):
        uploads.seal()


def test_of_a_rank_that_tried_twice_the_last_attempt_counts() -> None:
    driver = Uploads()
    driver.heard_of([(CHECKPOINT, "first-0", 0), (CHECKPOINT, "first-1", 1)])
    driver.heard_of([(CHECKPOINT, "second-1", 1)])
    assert driver.take(CHECKPOINT) == ["first-0", "second-1"]


def test_a_rank_that_reports_no_more_after_its_try_was_given_up_is_not_waited_for() -> None:
    driver, worker = Uploads(), Uploads()
    driver.heard_of([(CHECKPOINT, "first-0", 0), (CHECKPOINT, "first-1", 1)])
    driver.give_up("trial")
    worker.heard_of(driver.reported())  # it is started again
    worker.heard_of([(CHECKPOINT, "second-0", 0)])
    driver.heard_of(worker.reported())
    assert driver.reported_at(CHECKPOINT) == driver.take(CHECKPOINT) == ["second-0"]


def test_what_was_reported_before_its_writers_went_counts_while_nothing_else_is() -> None:
    driver = Uploads()
    driver.heard_of([(CHECKPOINT, "a", 0)])
    driver.give_up("trial")
    driver.give_up("tri")
    driver.heard_of([(CHECKPOINT, "a", 0)])  # somebody who had heard of it reports late
    assert driver.take(CHECKPOINT) == ["a"]


def test_only_tries_of_that_trial_are_given_up() -> None:
    driver = Uploads()
    driver.heard_of([(CHECKPOINT, "a", 0), ("trial2/checkpoint_000000", "b", 0)])
    driver.give_up("trial")
    assert driver.reported() == (("trial2/checkpoint_000000", "b", 0),)


def test_a_process_that_tries_twice_reports_the_second_time_only(tmp_path: Path) -> None:
    uploads, home = Uploads(), LocalHome(tmp_path)
    for data in (b"1", b"2"):
        upload = uploads.begin(home, CHECKPOINT, 0)
        upload.add_small("a", data, "digest")
        uploads.seal()
    assert uploads.take(CHECKPOINT) == [upload.attempt]


def begin_beside(uploads: Uploads, home: LocalHome, checkpoint: str) -> None:
    """A thread of its own writes a file of a checkpoint."""

    def write() -> None:
        uploads.begin(home, checkpoint, 0).add_small("file", b"body", digest_of(b"body"))

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()


def lose(home: LocalHome, upload: CheckpointUpload) -> None:
    """A file of an attempt is gone before that is sealed."""
    home.store.remove(upload.key("file"))


@pytest.mark.parametrize("lost_count", [1, 2])
def test_what_fails_as_it_is_sealed_keeps_no_other_checkpoint_from_it_and_each_error_is_raised(
    tmp_path: Path, lost_count: int
) -> None:
    uploads, home = Uploads(), LocalHome(tmp_path)
    names = [f"trial/checkpoint_{number:06d}" for number in range(3)]
    for name in names:
        begin_beside(uploads, home, name)
    for name in names:
        upload = uploads.find(name)
        assert upload is not None
        upload.send_batch()
        if name in names[:lost_count]:
            lose(home, upload)
    for name in names[:lost_count]:
        with pytest.raises(NotWholeError, match=name):
            uploads.seal()
        assert home.store.info(layout.seal_key(names[2], upload.attempt)) is not None
    uploads.seal()
    assert [checkpoint for checkpoint, _, _ in uploads.reported()] == names[lost_count:]


def test_a_home_that_does_not_answer_is_waited_for_once(tmp_path: Path) -> None:
    class Silent(LocalHome):
        asked_count = 0

        def seal(self, checkpoint: str, seal: Seal) -> None:
            self.asked_count += 1
            raise SyncTimeoutError("no answer")

    uploads, home = Uploads(), Silent(tmp_path)
    for name in ("trial/checkpoint_000000", "trial/checkpoint_000001"):
        begin_beside(uploads, home, name)
    with pytest.raises(SyncTimeoutError):
        uploads.seal()
    assert home.asked_count == 1


def copy(filesystem: Any, source: Path, target: str) -> None:
    """As Ray does."""
    filesystem.create_dir(target)
    pafs.copy_files(
        str(source), target, source_filesystem=pafs.LocalFileSystem(),
        destination_filesystem=filesystem,
    )  # fmt: skip


def fail_reading(filesystem: Any, source: Path, target: str) -> None:
    """A disk does not read one of the files."""
    (source / "broken").symlink_to("/proc/self/mem")
    try:
        with pytest.raises(OSError, match="Input/output"):
            copy(filesystem, source, target)
    finally:
        (source / "broken").unlink()


def fail_opening(filesystem: Any, source: Path, target: str) -> None:
    """One was there when all were listed, and has gone when it is its turn."""
    copy(filesystem, source, target)  # what was before it


@pytest.mark.parametrize("fail", [fail_reading, fail_opening])
def test_what_a_report_left_half_way_goes_with_the_next_one_of_its_trial(
    tmp_path: Path, fail: Callable[[Any, Path, str], None]
) -> None:
    """A training function that goes on after such an error would fill the disk at home."""
    filesystem, source = Experiment(tmp_path).filesystem, tmp_path / "source"
    handler, names = filesystem.handler, [f"checkpoint_{number:06d}" for number in range(4)]
    trial = Path(handler.experiment_root, "trial")
    source.mkdir()
    (source / "file").write_bytes(bytes(2 * SMALL_BYTES))  # of its own: it is at home at once
    try:
        other = handler.uploads.begin(handler.run.home, "other/checkpoint_000000", 0)
        for name in names[:-1]:
            fail(filesystem, source, f"{trial}/{name}")
        copy(filesystem, source, f"{trial}/{names[-1]}")
        handler.barrier(f"{trial}/{names[-1]}")
        staged = Path(handler.experiment_root, layout.STAGING_DIR, "trial").glob("*/*/data/*")
        assert [file.parts[-4] for file in staged] == [names[-1]]
        assert handler.uploads.find("other/checkpoint_000000") is other
        assert handler.publish(f"{trial}/{names[-1]}") == ()
    finally:
        handler.run.close()


def test_what_was_reported_and_is_not_placed_yet_does_not_go_with_the_next_report(
    tmp_path: Path,
) -> None:
    uploads, home = Uploads(), LocalHome(tmp_path)
    names = [f"trial/checkpoint_{number:06d}" for number in range(3)]
    for name in names:
        uploads.begin(home, name, 0).add_small("file", b"body", digest_of(b"body"))
        uploads.copied(name, 1)
        if name != names[1]:
            uploads.seal()
    for name in names:
        assert home.committer.place(name, attempts=uploads.take(name)).manifest.files


def test_several_checkpoints_of_a_trial_may_be_in_one_copy(tmp_path: Path) -> None:
    experiment, source = Experiment(tmp_path), tmp_path / "source"
    handler, names = experiment.filesystem.handler, [f"checkpoint_{n:06d}" for n in range(3)]
    for name in names:
        (source / name).mkdir(parents=True)
        (source / name / "file").write_text(name)
    trial = Path(handler.experiment_root, "trial")
    try:
        pafs.copy_files(
            str(source), str(trial), source_filesystem=pafs.LocalFileSystem(),
            destination_filesystem=experiment.filesystem, use_threads=False,
        )  # fmt: skip
        for name in names:
            handler.publish(f"{trial}/{name}")
            assert (trial / name / "file").read_text() == name
    finally:
        handler.run.close()


def test_a_report_fails_whose_seal_failed_in_another_thread(tmp_path: Path) -> None:
    """As one that pickles something of the run just then: it is told, and may not tell."""
    entered, go_on = threading.Event(), threading.Event()

    class Full(LocalHome):
        def seal(self, checkpoint: str, seal: Seal) -> None:
            entered.set()
            assert go_on.wait(60)
            raise StoreFullError(errno.ENOSPC, "full")

    def pickle() -> None:
        with suppress(StoreFullError):
            uploads.seal()

    uploads = Uploads()
    uploads.begin(Full(tmp_path), CHECKPOINT, 0).add_small("file", b"body", digest_of(b"body"))
    other = threading.Thread(target=pickle)
    other.start()
    assert entered.wait(60)
    uploads.copied(CHECKPOINT, 1)
    threading.Timer(0.2, go_on.set).start()  # once this thread waits for its turn
    with pytest.raises(StoreFullError):
        uploads.seal(CHECKPOINT)
    other.join()
