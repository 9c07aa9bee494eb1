"""A node sends what is staged there, whatever the destination does, and after it was restarted."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tune_sync import layout
from tune_sync.behind.node_disk import NodeDisk
from tune_sync.behind.node_sender import NodeSender
from tune_sync.behind.settling import Settling
from tune_sync.behind.staged_copy import StagedCopies
from tune_sync.behind.staging_home import StagingHome
from tune_sync.errors import NotWholeError, StoreUnreachableError, SyncTimeoutError
from tune_sync.homes.disk import remove_tree
from tune_sync.homes.home import Home, LocalHome
from tune_sync.sending.backlog import NOT_STAGED
from tune_sync.sending.orders import News, Orders
from tune_sync.transfer.upload import CheckpointUpload

TIMEOUT_S = 60.0
FIRST, SECOND = "t/checkpoint_000000", "t/checkpoint_000001"


class Shaky(LocalHome):
    """A destination that answers only while it is up."""

    is_up = True

    def begin(self, checkpoint: str) -> str:
        if not self.is_up:
            raise StoreUnreachableError("it does not answer")
        return super().begin(checkpoint)


@pytest.fixture
def home(tmp_path: Path) -> Shaky:
    return Shaky(tmp_path / "home")


@pytest.fixture
def make(tmp_path: Path, home: Shaky) -> Iterator[Callable[..., NodeSender]]:
    made: list[NodeSender] = []

    def sender(limit_bytes: int = 1 << 30, **limits: Any) -> NodeSender:
        made.append(
            NodeSender(tmp_path / "node", lambda: home, limit_bytes, first_pause_s=0.01, **limits)
        )
        return made[-1]

    yield sender
    for one in made:
        one.end()


def staging(tmp_path: Path, home: Home, sender: NodeSender, **more: object) -> StagingHome:
    return StagingHome(home, tmp_path / "node", sender, "node1", **more)  # type: ignore[arg-type]


def report(
    home: Home, checkpoint: str, body: bytes = b"body", ranks_count: int = 1
) -> CheckpointUpload:
    upload = CheckpointUpload(home, checkpoint, 0)
    upload.make_dir("empty")
    for name in ("a/one", "two"):
        with upload.open(name) as stream:
            stream.write(body)
    upload.copied(ranks_count)
    assert upload.seal()
    return upload


def until(sender: NodeSender, holds: Callable[[News], bool]) -> News:
    end_s = time.monotonic() + TIMEOUT_S
    while not holds(sender.status()):
        assert time.monotonic() < end_s, sender.status()
        time.sleep(0.01)
    return sender.status()


def until_confirmed(tmp_path: Path, checkpoint: str, upload: CheckpointUpload) -> None:
    copies, end_s = StagedCopies(tmp_path / "node"), time.monotonic() + TIMEOUT_S
    while not ((seal := copies.seal(checkpoint, upload.attempt)) and seal.is_confirmed):
        assert time.monotonic() < end_s
        time.sleep(0.01)


def stored(
    home: LocalHome, news: News, upload: CheckpointUpload, checkpoint: str
) -> dict[str, bytes]:
    placed = home.committer.place(checkpoint, attempts=[news.stored[upload.attempt]])
    home.committer.record(placed.manifest)
    root = home.root / checkpoint
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


def test_what_is_staged_arrives_whole_and_names_its_node(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    sender = make()
    upload = report(staging(tmp_path, home, sender), FIRST)
    assert upload.reported_as == f"{upload.attempt}@node1"
    news = until(sender, lambda n: upload.attempt in n.stored)
    assert stored(home, news, upload, FIRST) == {"a/one": b"body", "two": b"body"}
    assert (home.root / FIRST / "empty").is_dir()


def test_a_report_does_not_wait_for_a_destination_that_is_down_and_all_arrives_later(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    sender = make()
    home.is_up = False
    uploads = [report(staging(tmp_path, home, sender), name) for name in (FIRST, SECOND)]
    assert "does not answer" in until(sender, lambda n: bool(n.error)).error
    home.is_up = True
    news = until(sender, lambda n: len(n.stored) == 2)
    assert set(news.stored) == {upload.attempt for upload in uploads}
    assert (news.left_count, news.error) == (0, "")


def test_a_new_sender_goes_on_from_what_is_on_the_disk(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    sender = make()
    first = report(staging(tmp_path, home, sender), FIRST)
    before = until(sender, lambda n: first.attempt in n.stored)
    home.is_up = False
    second = report(staging(tmp_path, home, sender), SECOND)
    again = make()
    assert again.status().stored == before.stored  # and it is not sent twice
    home.is_up = True
    until(again, lambda n: second.attempt in n.stored)


def test_the_copy_here_is_read_until_it_goes_and_then_what_is_published(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    sender = make()
    local = staging(tmp_path, home, sender)
    upload = report(local, FIRST)
    news = until(sender, lambda n: upload.attempt in n.stored)
    assert local.read(f"{FIRST}/two", 0, 4) == b"body"
    assert {i.key for i in local.list(FIRST, True)} == {
        f"{FIRST}/{inner}" for inner in ("a", "a/one", "empty", "two")
    }
    stored(home, news, upload, FIRST)
    later = report(local, SECOND)
    sender.exchange(Orders(published=[upload.attempt, later.attempt]))
    assert not (tmp_path / "node" / layout.attempt_key(FIRST, upload.attempt)).exists()
    assert (tmp_path / "node" / layout.attempt_key(SECOND, later.attempt)).exists()
    assert local.read(f"{FIRST}/two", 0, 4) == b"body"
    assert local.read_many([f"{FIRST}/a/one"]) == [b"body"]


def test_a_checkpoint_from_elsewhere_is_waited_for(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    now_s = iter(range(100))
    local = staging(
        tmp_path, home, make(), timeout_s=5.0,
        clock=lambda: float(next(now_s)), sleep=lambda s: None,
    )  # fmt: skip
    with pytest.raises(SyncTimeoutError, match="staged on another node"):
        local.info(FIRST)


def test_a_part_of_several_is_not_read_as_the_whole(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    local = staging(tmp_path, home, make(), timeout_s=-1.0)
    report(local, FIRST, ranks_count=2)
    with pytest.raises(SyncTimeoutError):
        local.info(f"{FIRST}/two")


@pytest.mark.parametrize("others", [[], ["another one"]])
def test_the_only_part_that_was_reported_is_the_whole_once_the_driver_says_so(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender], others: list[str]
) -> None:
    """As where rank 0 saves for all."""
    sender = make(only_wanted=True)
    local = staging(tmp_path, home, sender, timeout_s=-1.0)
    attempt = report(local, FIRST, ranks_count=8).attempt
    sender.exchange(Orders(expected=[attempt], parts={attempt: [*others, attempt]}))
    if others:
        with pytest.raises(SyncTimeoutError):
            local.info(f"{FIRST}/two")
        return
    assert local.read(f"{FIRST}/two", 0, 4) == b"body"
    with local.held(FIRST) as directory:
        assert directory is not None
        assert (directory / "two").read_bytes() == b"body"


def test_writers_wait_for_room(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    sender = make(limit_bytes=4)
    home.is_up = False
    report(staging(tmp_path, home, sender), FIRST)
    until(sender, lambda n: n.left_count == 1)
    with pytest.raises(SyncTimeoutError, match="staging_limit_bytes"):
        staging(tmp_path, home, sender, timeout_s=-1.0).begin(SECOND)


def test_who_waits_for_room_says_so_at_once(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender], caplog: pytest.LogCaptureFixture
) -> None:
    sender = make(limit_bytes=4)
    home.is_up = False
    report(staging(tmp_path, home, sender), FIRST)
    until(sender, lambda n: n.left_count == 1)
    time_s = itertools.count(step=0.4)  # a look takes time, unlike a test's clock
    waiting = staging(
        tmp_path, home, sender, timeout_s=2.0, clock=lambda: next(time_s), sleep=lambda s: None
    )
    with caplog.at_level("WARNING", "ray.tune_sync"), pytest.raises(SyncTimeoutError):
        waiting.begin(SECOND)
    said = [r.getMessage() for r in caplog.records]
    assert len([s for s in said if s.startswith(f"{SECOND} waits")]) == 1


def test_damaged_bytes_are_not_sent(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    sender = make()
    home.is_up = False
    upload = report(staging(tmp_path, home, sender), FIRST)
    until_confirmed(tmp_path, FIRST, upload)
    file = tmp_path / "node" / layout.staged_key(FIRST, upload.attempt) / "two"
    file.write_bytes(b"bady")
    home.is_up = True
    news = until(sender, lambda n: bool(n.failed))
    assert "damaged" in news.failed[upload.attempt]
    assert not news.stored


def test_what_someone_removes_from_staging_is_given_up_at_once(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    sender = make()
    home.is_up = False
    uploads = [report(staging(tmp_path, home, sender), name) for name in (FIRST, SECOND)]
    until(sender, lambda n: n.left_count == 2)
    for name, upload in zip((FIRST, SECOND), uploads, strict=True):
        until_confirmed(tmp_path, name, upload)
    staged = tmp_path / "node" / layout.STAGING_DIR
    remove_tree(staged / FIRST)  # which its agent may be confirming just now
    news = sender.exchange(Orders(expected=[upload.attempt for upload in uploads]))
    assert news.failed == {uploads[0].attempt: NOT_STAGED}
    (staged / SECOND / uploads[1].attempt / "data" / "two").unlink()
    home.is_up = True
    news = until(sender, lambda n: n.left_count == 0)
    assert set(news.failed) == {upload.attempt for upload in uploads}


def test_who_waits_for_what_is_lost_is_told_at_once(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    now_s = itertools.count()
    local = staging(
        tmp_path, home, make(), timeout_s=1000.0, why_lost={FIRST: "its node is gone"}.get,
        clock=lambda: float(next(now_s)), sleep=lambda s: None,
    )  # fmt: skip
    with pytest.raises(NotWholeError, match=f"{FIRST} is lost .its node is gone"):
        local.info(FIRST)
    assert next(now_s) < 10


def test_bytes_are_those_of_the_moment_of_the_report(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    sender = make()
    home.is_up = False
    large = bytes(range(256)) * (5 << 12)
    source = tmp_path / "source"
    source.mkdir()
    for name, body in (("small", b"then"), ("large", large)):
        (source / name).write_bytes(body)
    upload = CheckpointUpload(staging(tmp_path, home, sender), FIRST, 0)
    for name in ("small", "large"):
        upload.add_file(name, source / name)
    upload.copied(1)
    assert upload.seal()
    (source / "small").write_bytes(b"now!")
    with (source / "large").open("r+b") as file:
        file.write(b"overwritten in place")
    shutil.rmtree(source)
    home.is_up = True
    news = until(sender, lambda n: upload.attempt in n.stored)
    assert stored(home, news, upload, FIRST) == {"small": b"then", "large": large}


def test_what_the_driver_expects_and_is_not_there_is_told(
    make: Callable[..., NodeSender],
) -> None:
    assert make().exchange(Orders(expected=["other"])).missing == ["other"]


def test_who_waits_for_the_destination_goes_on_when_it_does_not_answer(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    sender = make()
    waiting = staging(tmp_path, home, sender, settling=Settling(sender, TIMEOUT_S))
    first = report(waiting, FIRST)
    assert first.attempt in sender.status().stored
    home.is_up = False
    second = report(waiting, SECOND)
    assert second.attempt not in sender.status().stored


def test_of_reports_that_wait_in_vain_in_a_row_one_too_many_fails_and_says_why(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    sender = make()
    waiting = staging(tmp_path, home, sender, settling=Settling(sender, TIMEOUT_S, 3))
    names = [f"trial/checkpoint_{number:06}" for number in range(6)]
    home.is_up = False
    staged = [report(waiting, name) for name in names[:2]]
    home.is_up = True
    until(sender, lambda n: n.stored_count == 2 and not n.error)
    staged.append(report(waiting, names[2]))  # is stored, so that the count starts anew
    home.is_up = False
    staged += [report(waiting, name) for name in names[3:5]]
    failing = CheckpointUpload(waiting, names[5], 0)
    with failing.open("one") as stream:
        stream.write(b"body")
    failing.copied(1)
    with pytest.raises(StoreUnreachableError, match=r"last 3 reports.*it does not answer"):
        failing.seal()
    home.is_up = True
    news = until(sender, lambda n: not n.left_count)
    assert {*news.stored} == {upload.attempt for upload in staged}


def test_what_nobody_wants_yet_stays_until_it_is_wanted_or_dropped(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    sender = make(only_wanted=True)
    first, second = (report(staging(tmp_path, home, sender), name) for name in (FIRST, SECOND))
    until(sender, lambda n: n.left_count == 2)
    sender.exchange(Orders(wanted=[second.attempt]))
    until(sender, lambda n: second.attempt in n.stored)
    assert first.attempt not in sender.status().stored
    sender.exchange(Orders(dropped=[first.attempt]))
    assert not (tmp_path / "node" / layout.attempt_key(FIRST, first.attempt)).exists()
    sent = home.root / layout.STAGING_DIR
    assert [entry.name for entry in sent.glob("*/*")] == [SECOND.rpartition("/")[-1]]


def test_a_node_sends_no_more_than_it_may(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    body, count = bytes(100_000), 5
    sender = make(max_bytes_per_s=8 * len(body))
    began_s = time.monotonic()
    for number in range(count):
        report(staging(tmp_path, home, sender), f"t/checkpoint_{number:06d}", body)
    until(sender, lambda n: len(n.stored) == count)
    took_s = time.monotonic() - began_s
    assert took_s > (count - 1) * 2 / 8, "two files each; the last piece does not count"


def test_what_is_published_is_removed_and_only_the_newest_of_a_trial_stays(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    sender, body = make(), bytes(1 << 20)
    local, done = staging(tmp_path, home, sender), []
    for number in range(6):
        checkpoint = f"t/{layout.checkpoint_name(number)}"
        upload = report(local, checkpoint, body)
        attempt = upload.attempt
        news = until(sender, lambda n, attempt=attempt: attempt in n.stored)  # type: ignore[misc]
        stored(home, news, upload, checkpoint)
        done.append(attempt)
        sender.exchange(Orders(published=done))
        left_bytes = sum(f.stat().st_size for f in (tmp_path / "node").rglob("*") if f.is_file())
        assert 2 * len(body) <= left_bytes < 2.1 * len(body)


def test_what_a_killed_trial_told_nobody_of_is_sent_after_the_drivers_death(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    """Both died right after the report had returned, before this agent was woken."""
    sender = make()
    report(NodeDisk(tmp_path / "node"), FIRST)
    assert sender.is_idle
    sender.go_on_alone()
    assert not sender.is_idle
    assert until(sender, lambda news: news.stored_count == 1).left_count == 0
