"""A run's hold on its experiment directory, from lease to last delete."""

from __future__ import annotations

import json
import shutil
import threading
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.unit.staged import CHECKPOINT, placed, sealed
from tune_sync.errors import (
    ConfigError,
    DamagedError,
    ExperimentExistsError,
    ImmutableError,
    LeaseHeldError,
    LeaseLostError,
    NotStoredError,
    RanksDisagreeError,
    StoreFullError,
    SyncTimeoutError,
)
from tune_sync.homes.commit import Committer
from tune_sync.homes.lease import Holder, read_holder
from tune_sync.homes.saved_state import TrialNames
from tune_sync.homes.sites import holds_experiment
from tune_sync.homes.store import LocalStore
from tune_sync.layout import FORMAT_KEY, INCOMING_DIR, LEASE_KEY, STAGING_DIR
from tune_sync.run import Run
from tune_sync.tidying import cleanup

TIMEOUT_S = 60.0
STATE = "experiment_state-2026.json"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "exp"


def start(root: Path, runs: list[Run], on_existing: str = "error") -> Run:
    runs.append(Run.open(root, on_existing, TIMEOUT_S, 1))
    return runs[-1]


def finish_one(root: Path) -> None:
    """Leave a finished experiment behind."""
    run = Run.open(root, "error", TIMEOUT_S, 1)
    run.begun = True
    run.publisher.record_later(placed(run.home.committer, {"a": b"1"}))
    (root / STATE).write_text(json.dumps({"trial_data": []}))
    run.flush(TIMEOUT_S)
    run.close()


def hold_elsewhere(root: Path) -> None:
    """Leave the lease of a live process of another machine."""
    holder = Holder("other", "far", 12, "another machine", "345", time.time())
    (root / LEASE_KEY).parent.mkdir(parents=True, exist_ok=True)
    (root / LEASE_KEY).write_text(json.dumps(asdict(holder)))


def test_a_new_directory_is_taken_marked_and_given_back(root: Path, runs: list[Run]) -> None:
    run = start(root, runs)
    assert json.loads((root / FORMAT_KEY).read_text()) == {"format_version": 1}
    holder = read_holder(root / LEASE_KEY)
    assert holder is not None
    assert holder.owner == run.owner
    assert not holds_experiment(root)
    run.close()
    run.close()
    assert read_holder(root / LEASE_KEY) is None


def test_an_earlier_experiment_is_refused_before_anything_is_written(
    root: Path, runs: list[Run]
) -> None:
    finish_one(root)
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    with pytest.raises(
        ExperimentExistsError, match=r"Tuner\.restore.*another name.*overwrite=True"
    ):
        start(root, runs)
    assert before == {path: path.stat().st_mtime_ns for path in root.rglob("*")}


SIGNS = [
    STATE, "trainer.pkl", f".tune_sync/manifests/{CHECKPOINT}.json",
    *(f"{STAGING_DIR}/{CHECKPOINT}/attempt/{mark}" for mark in ("seal.json", "manifest.json")),
]  # fmt: skip


@pytest.mark.parametrize("sign", SIGNS)
def test_what_counts_as_an_experiment(root: Path, runs: list[Run], sign: str) -> None:
    (root / "some_other_file").mkdir(parents=True)
    assert not holds_experiment(root)
    (root / sign).parent.mkdir(parents=True, exist_ok=True)
    (root / sign).touch()
    assert holds_experiment(root)
    with pytest.raises(ExperimentExistsError):
        start(root, runs)


def test_an_earlier_experiment_is_moved_aside_whole(root: Path, runs: list[Run]) -> None:
    finish_one(root)
    start(root, runs, "move_aside")
    assert not holds_experiment(root)
    [aside] = [path for path in root.parent.iterdir() if path != root]
    assert aside.name.startswith("exp.")
    assert (aside / CHECKPOINT / "a").read_bytes() == b"1"
    assert holds_experiment(aside)
    again = start(aside, runs, "resume")
    assert again.home.committer.manifest(CHECKPOINT) is not None


def test_an_earlier_experiment_is_resumed_in_its_place(root: Path, runs: list[Run]) -> None:
    finish_one(root)
    run = start(root, runs, "resume")
    assert run.home.committer.manifest(CHECKPOINT) is not None


@pytest.mark.parametrize("on_existing", ["error", "move_aside", "resume"])
@pytest.mark.parametrize("finished", [True, False])
def test_a_directory_in_use_is_refused_with_who_uses_it(
    root: Path, runs: list[Run], on_existing: str, finished: bool
) -> None:
    if finished:
        finish_one(root)
    hold_elsewhere(root)
    with pytest.raises(LeaseHeldError, match=r"process 12 on host far"):
        start(root, runs, on_existing)
    holder = read_holder(root / LEASE_KEY)
    assert holder is not None
    assert holder.owner == "other"
    assert sorted(path.name for path in root.parent.iterdir()) == ["exp"]


def test_a_start_without_room_for_threads_gives_the_lease_back(
    root: Path, runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, before = threading.Thread.start, set(threading.enumerate())

    def start_some(thread: threading.Thread) -> None:
        if thread.name == "tune_sync-delete":
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start_some)
    with pytest.raises(RuntimeError, match="new thread"):
        start(root, runs)
    monkeypatch.undo()
    assert read_holder(root / LEASE_KEY) is None
    begun = set(threading.enumerate()) - before
    assert "tune_sync-lease" not in {thread.name for thread in begun}
    start(root, runs)


def test_on_a_disk_no_name_of_what_was_published_is_kept_in_memory(
    root: Path, runs: list[Run]
) -> None:
    run = start(root, runs)
    run.publish(CHECKPOINT, False, [sealed(run.home.committer, {"a": b"1"})])
    run.flush(TIMEOUT_S)
    assert not run._taken and not run._visible
    with pytest.raises(ImmutableError):
        run.publish(CHECKPOINT, False, [sealed(run.home.committer, {"a": b"2"})])


def test_a_run_of_this_process_that_never_began_makes_way(root: Path, runs: list[Run]) -> None:
    first = start(root, runs)
    second = start(root, runs)
    second.lease.check()
    with pytest.raises(LeaseLostError):
        first.lease.check()
    second.begun = True
    with pytest.raises(LeaseHeldError):
        start(root, runs)


def test_what_a_crash_left_is_finished_or_dropped_on_the_next_start(
    root: Path, runs: list[Run], caplog: pytest.LogCaptureFixture
) -> None:
    finish_one(root)
    crashed = Committer(LocalStore(root))
    placed(crashed, {"a": b"2"}, "trial/checkpoint_000001")
    sealed(crashed, {"a": b"3"}, "trial/checkpoint_000002")
    crashed.store.write_at(crashed.begin_file(), 0, b"half")
    run = start(root, runs, "resume")
    assert run.home.committer.manifest("trial/checkpoint_000001") is not None
    assert run.home.info("trial/checkpoint_000002") is None
    assert not (root / STAGING_DIR).exists()
    assert not (root / INCOMING_DIR).exists()
    assert "finished publishing trial/checkpoint_000001" in caplog.text
    assert "dropped trial/checkpoint_000002" in caplog.text


def test_a_state_that_cannot_be_read_is_told_before_anything_is_swept(
    root: Path, runs: list[Run]
) -> None:
    finish_one(root)
    crashed = Committer(LocalStore(root))
    sealed(crashed, {"a": b"3"}, "trial/checkpoint_000002")
    (root / STATE).write_bytes(b"")
    with pytest.raises(DamagedError, match=f"{STATE} is not readable"):
        Run.open(root, "resume", TIMEOUT_S, 1)
    assert list((root / STAGING_DIR).rglob("seal.json"))
    assert read_holder(root / LEASE_KEY) is None
    saved = [{"trial_id": "7"}, {
        "trial_id": "8", "relative_logdir": "x", "custom_dirname": None,
        "custom_trial_name": "net", "experiment_tag": "1_a=2",
    }]  # fmt: skip
    (root / STATE).write_text(
        json.dumps({"trial_data": [[json.dumps(one), "{}"] for one in saved]})
    )
    assert start(root, runs, "resume").saved_trials == {
        TrialNames("7"), TrialNames("8", directory="x", beginning="net_1_a=2_")
    }  # fmt: skip


def test_what_was_removed_by_hand_is_told(
    root: Path, runs: list[Run], caplog: pytest.LogCaptureFixture
) -> None:
    finish_one(root)
    shutil.rmtree(root / CHECKPOINT)
    start(root, runs, "resume").close()
    assert f"{CHECKPOINT} had been published, and what it held was removed" in caplog.text
    assert caplog.text.count("had been published") == 1
    finish_one(root.with_name("other"))
    shutil.rmtree(root.with_name("other") / CHECKPOINT)
    assert cleanup(root.with_name("other")).forgotten == (CHECKPOINT,)


def test_cleanup_does_the_same_without_a_run(root: Path) -> None:
    finish_one(root)
    crashed = Committer(LocalStore(root))
    placed(crashed, {"a": b"2"}, "trial/checkpoint_000001")
    sealed(crashed, {"a": b"3"}, "trial/checkpoint_000002")
    done = cleanup(root)
    assert done.completed == ("trial/checkpoint_000001",)
    assert done.dropped == ("trial/checkpoint_000002",)
    assert cleanup(str(root)).completed == ()
    assert read_holder(root / LEASE_KEY) is None


def test_cleanup_changes_nothing_where_nothing_of_ours_is_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(FileNotFoundError, match=f"^{tmp_path} holds no experiment.*; correct the"):
        cleanup(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_cleanup_takes_the_url_of_a_directory(root: Path) -> None:
    finish_one(root)
    placed(Committer(LocalStore(root)), {"a": b"2"}, "trial/checkpoint_000001")
    assert cleanup(f"file://{root}").completed == ("trial/checkpoint_000001",)


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("file:///never/there", "^/never/there is not a directory"),
        ("s3:/bucket/exp", r"not a directory; give .* or its URL, as in s3://"),
        ("memory://nothing/there", "nothing is in .*memory://nothing/there; give the experiment's"),
    ],
)
def test_cleanup_says_that_nothing_is_where_a_url_was_mistyped(place: str, says: str) -> None:
    with pytest.raises(FileNotFoundError, match=says):
        cleanup(place)


def test_cleanup_of_a_url_of_no_known_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="s4"):
        cleanup("s4://bucket/exp")


def test_cleanup_leaves_a_later_version_alone(root: Path) -> None:
    finish_one(root)
    (root / FORMAT_KEY).write_text('{"format_version": 99}')
    with pytest.raises(ConfigError, match="install the newer tune_sync"):
        cleanup(root)


def test_a_refused_publish_does_not_take_back_a_delete(root: Path, runs: list[Run]) -> None:
    finish_one(root)
    run = start(root, runs, "resume")
    run.retire_later(CHECKPOINT)
    again = sealed(run.home.committer, {"a": b"2"})
    with pytest.raises(ImmutableError, match="not stored"):
        run.publish(CHECKPOINT, False, [again])
    run.versions.made()
    run.versions.copying()()  # it has arrived
    run.publisher.state_written()
    run.publisher.state_written()
    run.flush(TIMEOUT_S)
    assert run.home.info(CHECKPOINT) is None


def test_a_name_that_is_being_deleted_is_waited_for_as_long_as_the_settings_say(
    root: Path, runs: list[Run]
) -> None:
    runs.append(run := Run.open(root, "error", 0.05, 1))
    run.publisher.record_later(placed(run.home.committer, {"a": b"1"}))
    run.publisher.settle(TIMEOUT_S)
    goes_on = threading.Event()
    run.home.committer.retire = lambda checkpoint: goes_on.wait(TIMEOUT_S)  # type: ignore[method-assign]
    run.publisher.retire_now(CHECKPOINT)
    while not run.publisher.is_retiring(CHECKPOINT):
        time.sleep(0.01)
    again = sealed(run.home.committer, {"a": b"2"})
    with pytest.raises(SyncTimeoutError, match="still being deleted"):
        run.publish(CHECKPOINT, False, [again])
    goes_on.set()


def test_cleanup_keeps_off_live_runs_and_names_what_is_missing(root: Path) -> None:
    with pytest.raises(FileNotFoundError, match="give the experiment's directory"):
        cleanup(root)
    finish_one(root)
    hold_elsewhere(root)
    with pytest.raises(LeaseHeldError, match="far"):
        cleanup(root)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b'{"format_version": 99}', ConfigError),
        (b"{}", DamagedError),
        (b"not json", DamagedError),
        (b"[1]", DamagedError),
        (b"\x80\x04.", DamagedError),
    ],
)
def test_a_directory_of_another_format_is_left_alone(
    root: Path, runs: list[Run], content: bytes, error: type[Exception]
) -> None:
    finish_one(root)
    (root / FORMAT_KEY).write_bytes(content)
    with pytest.raises(error) as refused:
        start(root, runs, "resume")
    assert "format" in str(refused.value)
    assert (root / FORMAT_KEY).read_bytes() == content
    assert read_holder(root / LEASE_KEY) is None


def test_a_checkpoint_that_was_refused_is_named_at_the_end(root: Path, runs: list[Run]) -> None:
    run = start(root, runs)
    run.refused["trial/checkpoint_000003"] = OSError("no room")
    with pytest.raises(NotStoredError, match=r"trial/checkpoint_000003: no room"):
        run.flush(TIMEOUT_S)


@pytest.mark.parametrize(
    "reason", [StoreFullError("no room"), RanksDisagreeError("ranks disagree")]
)
def test_what_there_was_no_room_to_place_is_placed_by_the_next_run(
    root: Path, runs: list[Run], reason: Exception
) -> None:
    finish_one(root)
    run = start(root, runs, "resume")
    sealed(run.home.committer, {"a": b"3"}, "trial/checkpoint_000002", ranks_count=1)
    run.refused["trial/checkpoint_000002"] = reason
    run.close()
    assert (root / STAGING_DIR).exists() == isinstance(reason, StoreFullError)
    found = start(root, runs, "resume").home.committer.manifest("trial/checkpoint_000002")
    assert (found is not None) == isinstance(reason, StoreFullError)
    assert not (root / STAGING_DIR).exists()


def test_closing_leaves_the_staging_of_a_successor_alone(root: Path, runs: list[Run]) -> None:
    first = start(root, runs)
    second = start(root, runs)  # takes over, as the first never began
    attempt = second.home.begin(CHECKPOINT)
    first.close()
    assert second.home.committer.attempts("trial") == [(CHECKPOINT, attempt)]
    second.lease.check()


def test_a_run_has_the_two_threads_of_its_publisher_alone(root: Path, runs: list[Run]) -> None:
    before = set(threading.enumerate())  # other tests may have left some
    start(root, runs)
    names = [t.name for t in threading.enumerate() if t not in before]
    assert (names.count("tune_sync-publish"), names.count("tune_sync-delete")) == (1, 1)
