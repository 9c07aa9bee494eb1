"""What Ray Train's record names is published before the record is put in its place."""

from __future__ import annotations

import json
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pytest
import ray.train

from tests.unit.staged import sealed
from tune_sync import layout
from tune_sync.agents.connect import RayConnector
from tune_sync.errors import (
    DamagedError,
    ImmutableError,
    LeaseLostError,
    NotStoredError,
    StoreFullError,
)
from tune_sync.filesystem import SyncHandler
from tune_sync.homes.home import LocalHome
from tune_sync.homes.saved_train import go_by_record, named_in, warn_of_unnamed
from tune_sync.homes.sites import format_json
from tune_sync.run import Run
from tune_sync.spec import Options, Spec
from tune_sync.tidying import cleanup

TIMEOUT_S = 60.0
FIRST, SECOND = "checkpoint_2026-11-30_04-35-06.000001", "checkpoint_2026-11-30_04-35-08.000002"


def record(*names: str) -> bytes:
    noted = [{"checkpoint_dir_name": name, "metrics": {}} for name in names]
    latest = noted[-1] if noted else None
    body = {"checkpoint_results": noted, "latest_checkpoint_result": latest}
    return json.dumps(body).encode()


class Controller:
    """Does what that of Ray Train does with a report of two ranks."""

    def __init__(self, root: Path) -> None:
        spec = Spec(str(root), str(root.parent), root.name, "", None, Options(checkpoint_depth=0))
        self.handler = SyncHandler(spec, RayConnector())
        self.filesystem = pafs.PyFileSystem(self.handler)
        self.root, self.told = root, list[tuple[str, str, int]]()
        self.home = self.handler._home()
        assert isinstance(self.home, LocalHome)
        self.committer = self.home.committer

    def hear_of(self, checkpoint: str) -> None:
        """A report says also what its worker has reported before."""
        for rank in (0, 1):
            data = {f"rank_{rank}": b"1"}
            attempt = sealed(self.committer, data, checkpoint, ranks_count=2, rank=rank)
            self.told.append((checkpoint, attempt, rank))
        self.handler.uploads.heard_of(self.told)

    def note(self, *names: str) -> None:
        with self.filesystem.open_output_stream(str(self.root / layout.TRAIN_RECORD)) as stream:
            stream.write(record(*names))

    def there(self, checkpoint: str) -> list[str]:
        return sorted(path.name for path in (self.root / checkpoint).glob("*"))


@pytest.fixture
def controller(tmp_path: Path) -> Controller:
    return Controller(tmp_path / "exp")


def test_what_is_named_is_there_and_published_once(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    controller.hear_of(FIRST)
    controller.note(FIRST)
    assert controller.there(FIRST) == ["rank_0", "rank_1"]
    assert controller.committer.manifest(FIRST) is not None
    controller.handler.publish(str(controller.root / FIRST))
    controller.hear_of(SECOND)
    publish = controller.home.publish
    monkeypatch.setattr(controller.home, "publish", lambda *a: asked.append(a[0]) or publish(*a))
    controller.note(FIRST, SECOND)
    controller.handler.publish(str(controller.root / SECOND))
    assert asked == [SECOND]


def test_another_report_of_a_name_that_is_published_is_refused(controller: Controller) -> None:
    controller.hear_of(FIRST)
    controller.note(FIRST)
    controller.told.clear()
    controller.hear_of(FIRST)
    with pytest.raises(ImmutableError, match=FIRST):
        controller.handler.publish(str(controller.root / FIRST))


def test_what_it_does_not_name_is_published_when_the_callback_hears_of_it(
    controller: Controller,
) -> None:
    controller.hear_of(FIRST)
    controller.note()
    assert controller.there(FIRST) == []
    controller.handler.publish(str(controller.root / FIRST))
    assert controller.there(FIRST) == ["rank_0", "rank_1"]


def test_nothing_is_deleted_while_a_record_without_it_is_not_stored(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    controller.hear_of(FIRST)
    controller.note(FIRST)
    before = (controller.root / layout.TRAIN_RECORD).read_bytes()

    def full(*args: Any, **named: Any) -> None:
        raise StoreFullError(28, "no space left")

    controller.hear_of(SECOND)
    monkeypatch.setattr(controller.committer, "place", full)
    with suppress(Exception):  # pyarrow drops it
        controller.note(SECOND)
    assert (controller.root / layout.TRAIN_RECORD).read_bytes() == before
    with pytest.raises(NotStoredError, match=layout.TRAIN_RECORD):
        controller.handler.delete_dir(str(controller.root / FIRST))
    with pytest.raises(ImmutableError, match="rank_0"):
        controller.handler.delete_dir(str(controller.root / FIRST / "rank_0"))
    with pytest.raises(StoreFullError):
        controller.handler.publish(str(controller.root / SECOND))
    assert controller.there(FIRST) == ["rank_0", "rank_1"]
    monkeypatch.undo()
    controller.hear_of(SECOND)
    controller.handler.publish(str(controller.root / SECOND))
    controller.note(FIRST, SECOND)
    assert controller.there(FIRST) == ["rank_0", "rank_1"]
    controller.note(SECOND)
    assert controller.there(FIRST) == [], "it goes as soon as it may"
    assert "is not deleted" not in caplog.text
    assert controller.there(SECOND) == ["rank_0", "rank_1"]


def test_what_could_not_be_published_is_not_named_by_the_record_at_the_end(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **named: Any) -> None:
        raise StoreFullError(28, "no space left")

    controller.hear_of(FIRST)
    monkeypatch.setattr(controller.committer, "place", full)
    with pytest.raises(StoreFullError):
        controller.handler.publish(str(controller.root / FIRST))
    with suppress(Exception):  # pyarrow drops it
        controller.note(FIRST)
    assert not (controller.root / layout.TRAIN_RECORD).exists()
    monkeypatch.undo()
    controller.note(FIRST)
    assert controller.there(FIRST) == ["rank_0", "rank_1"]


@pytest.mark.parametrize("why", [StoreFullError(28, "no space left"), LeaseLostError("taken over")])
def test_a_record_that_is_not_stored_fails_the_report_of_what_it_names(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, why: Exception
) -> None:
    from tune_sync.train_adapter import TrainCallback  # older Rays have nothing for it

    callback = TrainCallback(controller.filesystem)
    checkpoint = ray.train.Checkpoint(str(controller.root / FIRST), controller.filesystem)

    def fail(*args: Any, **named: Any) -> None:
        raise why

    controller.hear_of(FIRST)
    monkeypatch.setattr(controller.home, "commit_file", fail)
    with suppress(Exception):  # pyarrow drops it
        controller.note(FIRST)
    with pytest.raises(NotStoredError, match=f"{layout.TRAIN_RECORD}.*(no space left|taken)"):
        callback.after_report(None, [{}], checkpoint)
    elsewhere = ray.train.Checkpoint(str(controller.root), pafs.LocalFileSystem())
    for other in (elsewhere, None):
        with pytest.raises(NotStoredError):
            callback.after_report(None, [{}], other)
    monkeypatch.undo()
    controller.note(FIRST)
    callback.after_report(None, [{}], checkpoint)
    assert controller.there(FIRST) == ["rank_0", "rank_1"]


@pytest.mark.parametrize("where", ["place", "commit_file"])
def test_a_record_that_could_not_be_stored_for_a_moment_is_written_once_more(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    from tune_sync.train_adapter import TrainCallback  # older Rays have nothing for it

    def fail(*args: Any, **named: Any) -> None:
        raise StoreFullError(28, "no space left")

    controller.hear_of(FIRST)
    controller.note(FIRST)
    controller.hear_of(SECOND)
    monkeypatch.setattr(controller.committer, where, fail)
    with suppress(Exception):  # pyarrow drops it
        controller.note(SECOND)
    with pytest.raises(NotStoredError):
        controller.handler.delete_dir(str(controller.root / FIRST))
    monkeypatch.undo()
    checkpoint = ray.train.Checkpoint(str(controller.root / SECOND), controller.filesystem)
    TrainCallback(controller.filesystem).after_report(None, [{}], checkpoint)
    assert (controller.root / layout.TRAIN_RECORD).read_bytes() == record(SECOND)
    assert controller.there(FIRST) == [] and controller.there(SECOND) == ["rank_0", "rank_1"]


def test_a_note_that_fails_is_no_record_that_is_not_stored(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put = controller.home.commit_file

    def fail(incoming: str, key: str, durable: bool) -> None:
        if key == layout.TRAIN_RECORD_STORED:
            raise StoreFullError(28, "no space left")
        put(incoming, key, durable)

    note = controller.root / layout.TRAIN_RECORD_STORED
    controller.hear_of(FIRST)
    monkeypatch.setattr(controller.home, "commit_file", fail)
    controller.note(FIRST)
    assert controller.handler.files.unstored == {} and not note.exists()
    assert f"{layout.TRAIN_RECORD_STORED} is not written: [Errno 28] no space left" in caplog.text
    monkeypatch.undo()
    controller.hear_of(SECOND)
    controller.note(FIRST, SECOND)
    assert note.exists()


def test_a_run_is_resumed_by_its_record_and_refused_where_that_is_gone(
    controller: Controller, caplog: pytest.LogCaptureFixture
) -> None:
    home, record_file = controller.home, controller.root / layout.TRAIN_RECORD
    for checkpoint in (FIRST, SECOND):  # a kill came before there was a record
        controller.hear_of(checkpoint)
        controller.handler.publish(str(controller.root / checkpoint))
    warn_of_unnamed(home, "here")
    assert [f"here/{c} is not named" in caplog.text for c in (FIRST, SECOND)] == [True, True]
    caplog.clear()
    controller.note(SECOND)
    go_by_record(home, "here", resumes=True)
    warn_of_unnamed(home, "here")
    assert [f"here/{c} is not named" in caplog.text for c in (FIRST, SECOND)] == [True, False]
    controller.handler.delete_dir(str(controller.root / FIRST))
    record_file.unlink()
    with pytest.raises(DamagedError, match=f"here .*{layout.TRAIN_RECORD}"):
        go_by_record(home, "here", resumes=True)


@pytest.mark.parametrize("has_record", [True, False])
@pytest.mark.parametrize("is_resumed", [True, False])
def test_what_no_record_names_is_dropped_when_a_run_is_resumed_or_tidied(
    controller: Controller, *, is_resumed: bool, has_record: bool
) -> None:
    (controller.root / layout.INTERNAL_DIR).mkdir(parents=True)
    (controller.root / layout.FORMAT_KEY).write_bytes(format_json())
    for checkpoint in (FIRST, SECOND):
        sealed(controller.committer, {"rank_0": b"1"}, checkpoint, ranks_count=1)
    if has_record:  # of an older version
        (controller.root / layout.TRAIN_RECORD).write_bytes(record(FIRST))
    if is_resumed:
        Run.open(controller.root, "resume", TIMEOUT_S, 0).give_back()
    else:
        assert cleanup(controller.root).completed == ((FIRST,) if has_record else ())
    assert controller.there(FIRST) == (["rank_0"] if has_record else [])
    assert controller.there(SECOND) == []
    assert not (controller.root / layout.STAGING_DIR).exists()


def test_parts_of_which_not_all_came_go_when_a_run_is_resumed(controller: Controller) -> None:
    """No node has staged the others: Ray Train stores what it reports."""
    controller.hear_of(FIRST)
    controller.note(FIRST)
    sealed(controller.committer, {"rank_0": b"1"}, SECOND, ranks_count=2)
    (controller.root / layout.FORMAT_KEY).write_bytes(format_json())
    Run.open(controller.root, "resume", TIMEOUT_S, 0).give_back()
    assert not (controller.root / layout.STAGING_DIR).exists()
    assert controller.there(FIRST) == ["rank_0", "rank_1"] and controller.there(SECOND) == []


def resume(controller: Controller) -> None:
    (controller.root / layout.FORMAT_KEY).write_bytes(format_json())
    Run.open(controller.root, "resume", TIMEOUT_S, 0).give_back()


@pytest.mark.parametrize(
    ("named", "unnamed", "stays"),
    [
        ((2,), (3,), ()),
        ((9_999_999,), (10_000_000,), ()),
        ((2,), (1,), (1,)),
        ((2,), (3, 4), (3, 4)),  # someone went back to an older record
    ],
)
def test_a_name_that_will_be_reported_again_is_free_after_a_resume(
    controller: Controller, caplog: pytest.LogCaptureFixture, named: Any, unnamed: Any, stays: Any
) -> None:
    names = {number: layout.checkpoint_name(number) for number in (*named, *unnamed)}
    for name in names.values():
        controller.hear_of(name)
        controller.handler.publish(str(controller.root / name))
    controller.note(*(names[number] for number in named))
    resume(controller)
    for number, name in names.items():
        assert bool(controller.there(name)) == (number in named or number in stays)
        assert (f"{name} is deleted" in caplog.text) == (not controller.there(name))
        assert (f"{name} is not named" in caplog.text) == (number in stays)
    again = Controller(controller.root)
    again.hear_of(name)
    with pytest.raises(ImmutableError) if stays else nullcontext():
        again.handler.publish(str(controller.root / name))


@pytest.mark.parametrize("has_note", [True, False])
@pytest.mark.parametrize("last", [SECOND, layout.checkpoint_name(1)])
def test_what_an_older_version_left_or_is_named_by_the_time_stays_with_a_warning(
    controller: Controller, caplog: pytest.LogCaptureFixture, last: str, *, has_note: bool
) -> None:
    first = FIRST if last == SECOND else layout.checkpoint_name(0)
    for name in (first, last):
        controller.hear_of(name)
        controller.handler.publish(str(controller.root / name))
    controller.note(first)
    if not has_note:
        (controller.root / layout.TRAIN_RECORD_STORED).unlink()
    resume(controller)
    stays = last == SECOND or not has_note
    assert (controller.there(first) != [], controller.there(last) != []) == (True, stays)
    assert (f"{last} is not named" in caplog.text) == stays


@pytest.mark.parametrize("is_resumed", [True, False])
def test_what_was_placed_and_not_named_as_all_ended_is_told(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    *, is_resumed: bool,
) -> None:  # fmt: skip
    def killed(*args: Any) -> None:
        raise StoreFullError(28, "no space left")

    controller.hear_of(FIRST)
    controller.note(FIRST)
    controller.hear_of(SECOND)
    with monkeypatch.context() as context, suppress(Exception):
        context.setattr(controller.committer, "record", killed)
        controller.note(FIRST, SECOND)
    assert controller.there(SECOND) == ["rank_0", "rank_1"]
    if is_resumed:
        resume(controller)
    else:
        (controller.root / layout.FORMAT_KEY).write_bytes(format_json())
        cleanup(controller.root)
    assert f"{SECOND} is not named" in caplog.text
    assert f"{FIRST} is not named" not in caplog.text


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"checkpoint_results": 1}', b"[" * 9999])
def test_a_record_of_another_shape_names_nothing(body: bytes) -> None:
    assert named_in(body) == []
