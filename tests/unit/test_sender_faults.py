"""What goes wrong with one attempt of a node, or went wrong before, does not count for others."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_node_sender import FIRST, SECOND, TIMEOUT_S, Shaky, report, staging, until
from tune_sync import layout
from tune_sync.behind.failures import MOST_IN_A_ROW
from tune_sync.behind.left_behind import LeftBehind, remove_sent, send_left
from tune_sync.behind.node_sender import NodeSender
from tune_sync.behind.settling import Settling
from tune_sync.behind.staged_copy import StagedCopies
from tune_sync.errors import StoreUnreachableError
from tune_sync.homes.store import LocalStore
from tune_sync.sending.orders import Orders
from tune_sync.transfer.upload import CheckpointUpload


@pytest.fixture
def home(tmp_path: Path) -> Shaky:
    return Shaky(tmp_path / "home")


@pytest.fixture
def make(tmp_path: Path, home: Shaky) -> Iterator[Callable[..., NodeSender]]:
    made: list[NodeSender] = []

    def sender(**more: Any) -> NodeSender:
        made.append(NodeSender(tmp_path / "node", lambda: home, 1 << 30, **more))
        return made[-1]

    yield sender
    for one in made:
        one.end()


def in_the_way(tmp_path: Path, key: str) -> None:
    (tmp_path / "node" / key / "in the way").mkdir(parents=True)


def test_an_attempt_that_cannot_be_removed_keeps_no_news_of_others_back(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    sender = make()
    first, second = (report(staging(tmp_path, home, sender), c) for c in (FIRST, SECOND))
    until(sender, lambda n: len(n.stored) == 2)
    in_the_way(tmp_path, f"{layout.TRASH_DIR}/{first.attempt}")
    orders = Orders(expected=[second.attempt], dropped=[first.attempt])
    assert second.attempt in sender.exchange(orders).stored
    assert first.attempt in sender.exchange(orders).held


def test_an_attempt_of_which_it_cannot_be_noted_that_it_is_stored_is_sent_once(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    home.is_up = False
    sender = make(first_pause_s=0.01)
    upload = report(staging(tmp_path, home, sender), FIRST)
    in_the_way(tmp_path, f"{layout.attempt_key(FIRST, upload.attempt)}/stored.json")
    home.is_up = True
    until(sender, lambda n: upload.attempt in n.stored)
    assert sender.status().stored_count == 1
    assert len(home.committer.attempts("t")) == 1


def test_an_attempt_whose_parts_cannot_be_noted_keeps_no_news_of_others_back(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    sender = make()
    first, second = (
        report(staging(tmp_path, home, sender), c, ranks_count=2) for c in (FIRST, SECOND)
    )
    until(sender, lambda n: len(n.stored) == 2)
    in_the_way(tmp_path, f"{layout.attempt_key(FIRST, first.attempt)}/parts.json")
    parts = {upload.attempt: [upload.attempt, "other"] for upload in (first, second)}
    assert sender.exchange(Orders(parts=parts)).noted == [second.attempt]


def test_an_attempt_that_cannot_be_read_keeps_no_news_of_others_back(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    sender = make()
    in_the_way(tmp_path, f"{layout.attempt_key(FIRST, '0' * 32)}/seal.json")
    upload = report(staging(tmp_path, home, sender), SECOND)
    until(sender, lambda n: upload.attempt in n.stored)
    assert sender.exchange(Orders(expected=["0" * 32, "1" * 32])).missing == ["1" * 32]


def test_a_seal_that_cannot_be_read_is_told_once_and_taken_in_once_it_can(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender], caplog: pytest.LogCaptureFixture
) -> None:
    sender = make(only_expected=True)
    upload = report(staging(tmp_path, home, sender), FIRST)
    sender.end(leave=True)
    (seal,) = (tmp_path / "node").rglob("seal.json")
    whole = seal.read_bytes()
    seal.write_bytes(whole[:-10])
    sender = make(only_expected=True)
    orders = Orders(expected=[upload.attempt])
    for _ in range(3):
        assert sender.exchange(orders).missing == []
    assert caplog.text.count("seal.json") == 1
    seal.write_bytes(whole)
    news = sender.exchange(orders)
    assert (news.missing, news.held) == ([], [upload.attempt])


@pytest.mark.parametrize("method", ["seal", "attempts", "stored_as", "is_sealed"])
def test_what_cannot_be_looked_at_for_a_moment_is_not_missing(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender], monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:  # fmt: skip
    home.is_up = False
    sender = make(only_expected=True)
    upload = report(staging(tmp_path, home, sender), FIRST)
    sender.end(leave=True)
    orders = Orders(expected=[upload.attempt])
    home.is_up = True
    with monkeypatch.context() as failing:
        error = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        if method == "attempts":
            failing.setattr(LocalStore, "list", raising(error))
        else:
            failing.setattr(StagedCopies, method, raising(error))
        sender = make(only_expected=True)
        assert [sender.exchange(orders).missing for _ in range(3)] == [[], [], []]
        assert sender.exchange(orders).held == []
    assert sender.exchange(orders).held == [upload.attempt]
    until(sender, lambda n: upload.attempt in n.stored)


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*_: Any) -> Any:
        raise error

    return fail


def test_what_cannot_be_looked_at_for_too_long_is_missing(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender]
) -> None:
    in_the_way(tmp_path, f"{layout.attempt_key(FIRST, '0' * 32)}/seal.json")
    sender = make(patience_s=0.0)
    assert sender.exchange(Orders(expected=["0" * 32])).missing == ["0" * 32]


@pytest.fixture
def unlisted(monkeypatch: pytest.MonkeyPatch) -> str:
    """A trial's directory in staging that cannot be listed, as one of another user."""
    found, list_all = f"{layout.STAGING_DIR}/other", LocalStore.list

    def list_some(self: LocalStore, key: str) -> Any:
        if key == found:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self.path(key)))
        return list_all(self, key)

    monkeypatch.setattr(LocalStore, "list", list_some)
    return found


def test_a_directory_that_cannot_be_listed_is_told_once_and_keeps_nothing_else_back(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender], unlisted: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    (tmp_path / "node" / unlisted).mkdir(parents=True)
    sender = make(patience_s=0.0)
    upload = report(staging(tmp_path, home, sender), SECOND)
    orders = Orders(expected=[upload.attempt, "0" * 32])
    assert upload.attempt in until(sender, lambda n: len(n.stored) == 1).stored
    assert sender.exchange(orders).missing == ["0" * 32]
    assert caplog.text.count(f"{unlisted}'") == 1


def test_what_is_left_beside_a_directory_that_cannot_be_listed_is_sent_and_that_stays(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender], unlisted: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    home.is_up = False
    sender = make()
    report(staging(tmp_path, home, sender), SECOND)
    sender.end(leave=True)
    home.is_up, root = True, tmp_path / "node"
    (root / unlisted / "file").mkdir(parents=True)
    left = LeftBehind(root, "exp", "run", "node", 0.0)
    assert send_left(left, home, lambda checkpoint: True) == [SECOND]
    assert (root / unlisted / "file").exists()
    assert f"{unlisted}'" in caplog.text
    assert not remove_sent([root])
    assert (root / unlisted / "file").exists()


def test_what_is_left_beside_a_seal_that_cannot_be_opened_is_sent_and_that_stays(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender], caplog: pytest.LogCaptureFixture
) -> None:
    home.is_up = False
    sender = make()
    report(staging(tmp_path, home, sender), SECOND)
    sender.end(leave=True)
    home.is_up, root = True, tmp_path / "node"
    seal = f"{layout.attempt_key(FIRST, '0' * 32)}/seal.json"
    in_the_way(tmp_path, seal)
    left = LeftBehind(root, "exp", "run", "node", 0.0)
    assert send_left(left, home, lambda checkpoint: True) == [SECOND]
    assert (root / seal).exists()
    assert seal in caplog.text


def test_one_that_this_disk_cannot_read_keeps_none_of_the_younger_from_being_sent(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender], monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    names = [f"t/checkpoint_{number:06d}" for number in range(4)]
    home.is_up = False
    sender = make()
    for name in names:
        report(staging(tmp_path, home, sender), name)
    sender.end(leave=True)
    home.is_up, add_file, sent = True, CheckpointUpload.add_file, list[str]()

    def fail_once(self: CheckpointUpload, path: str, source: Path, *more: Any) -> Any:
        if f"{names[0]}/" in str(source):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(source))
        return add_file(self, path, source, *more)

    left = LeftBehind(tmp_path / "node", "exp", "run", "node", 0.0)
    with monkeypatch.context() as failing:
        failing.setattr(CheckpointUpload, "add_file", fail_once)
        with pytest.raises(OSError, match=f"output error.*{names[0]}"):
            send_left(left, home, lambda checkpoint: True, sent=sent)
    assert sent == names[1:]
    assert f"{names[0]} cannot be sent now, and stays" in caplog.text
    assert send_left(left, home, lambda checkpoint: True) == names[:1]


def test_a_destination_that_is_away_is_not_asked_for_each_that_is_left(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender], caplog: pytest.LogCaptureFixture
) -> None:
    home.is_up = False
    sender = make()
    for number in range(MOST_IN_A_ROW + 2):
        report(staging(tmp_path, home, sender), f"t/checkpoint_{number:06d}")
    sender.end(leave=True)
    left = LeftBehind(tmp_path / "node", "exp", "run", "node", 0.0)
    with pytest.raises(StoreUnreachableError):
        send_left(left, home, lambda checkpoint: True)
    assert caplog.text.count("cannot be sent now, and stays") == MOST_IN_A_ROW - 1


class Counting(Shaky):
    """Tells when it was asked."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.was_asked = threading.Event()

    def begin(self, checkpoint: str) -> str:
        self.was_asked.set()
        return super().begin(checkpoint)


def test_a_report_after_an_outage_is_tried_before_it_counts_as_failed(tmp_path: Path) -> None:
    home = Counting(tmp_path / "home")
    home.is_up = False
    sender = NodeSender(tmp_path / "node", lambda: home, 1 << 30, first_pause_s=3600.0)
    try:
        waiting = staging(tmp_path, home, sender, settling=Settling(sender, TIMEOUT_S, 2))
        first = report(waiting, FIRST)
        assert first.attempt not in sender.status().stored
        home.is_up = True
        second = report(waiting, SECOND)
        assert second.attempt in until(sender, lambda n: not n.left_count).stored
    finally:
        sender.end()


def test_in_an_outage_each_report_is_tried_before_it_counts_as_failed(tmp_path: Path) -> None:
    home = Counting(tmp_path / "home")
    home.is_up = False
    sender = NodeSender(tmp_path / "node", lambda: home, 1 << 30, first_pause_s=3600.0)
    try:
        waiting = staging(tmp_path, home, sender, settling=Settling(sender, TIMEOUT_S, 2))
        report(waiting, FIRST)
        home.was_asked.clear()
        with pytest.raises(StoreUnreachableError, match=r"last 2 reports.*it does not answer"):
            report(waiting, SECOND)
        assert home.was_asked.is_set()
    finally:
        sender.end()


def test_a_disk_that_hangs_as_something_is_taken_in_holds_up_nobody_who_asks(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender], monkeypatch: pytest.MonkeyPatch
) -> None:
    sender, is_hanging, goes_on = make(), threading.Event(), threading.Event()
    is_sealed = StagedCopies.is_sealed

    def hang(copies: StagedCopies, checkpoint: str, attempt: str) -> bool:
        is_hanging.set()
        assert goes_on.wait(TIMEOUT_S)
        return is_sealed(copies, checkpoint, attempt)

    monkeypatch.setattr(StagedCopies, "is_sealed", hang)
    reporting = threading.Thread(
        target=lambda: report(staging(tmp_path, home, sender), FIRST), daemon=True
    )
    reporting.start()
    try:
        assert is_hanging.wait(TIMEOUT_S)
        told = threading.Event()
        threading.Thread(target=lambda: (sender.status(), told.set()), daemon=True).start()
        assert told.wait(TIMEOUT_S / 2)
    finally:
        goes_on.set()
        reporting.join(TIMEOUT_S)
    until(sender, lambda n: len(n.stored) == 1)


def test_what_is_removed_as_it_is_taken_in_is_not_taken_in(
    tmp_path: Path, home: Shaky, make: Callable[..., NodeSender], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was there when it was looked for, and is not when it is to be added."""
    sender, is_sealed, looks = make(only_expected=True), StagedCopies.is_sealed, []

    def remove_after(copies: StagedCopies, checkpoint: str, attempt: str) -> bool:
        found = is_sealed(copies, checkpoint, attempt)
        looks.append(found)
        if len(looks) == 1:
            assert sender.forget(checkpoint, attempt)
        return found

    monkeypatch.setattr(StagedCopies, "is_sealed", remove_after)
    report(staging(tmp_path, home, sender), FIRST)
    sender.scan()
    assert looks == [True, False]
    assert sender.status().left_count == 0 and sender.is_idle
