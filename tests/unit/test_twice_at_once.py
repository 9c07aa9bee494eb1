"""A call that comes twice at once: its caller could not reach the home, and asked again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.staged import CHECKPOINT, sealed
from tune_sync.agents.home_agent import HomeAgent
from tune_sync.errors import DamagedError, ImmutableError, PathRefusedError
from tune_sync.homes.digests import digest_of
from tune_sync.homes.home import LocalHome
from tune_sync.layout import FORMAT_KEY, INCOMING_DIR, STAGING_DIR, manifest_key, staged_key
from tune_sync.manifest import FileEntry
from tune_sync.transfer.upload import CheckpointUpload

TIMEOUT_S = 30.0
# How long one waits for the other, which does not come if they take turns.
MEET_S = 0.5


@pytest.fixture
def agent(tmp_path: Path) -> HomeAgent:
    (tmp_path / FORMAT_KEY).parent.mkdir()
    (tmp_path / FORMAT_KEY).write_text("{}")
    return HomeAgent()


@pytest.fixture
def home(tmp_path: Path, agent: HomeAgent) -> LocalHome:
    """What the agent does its work with."""
    return agent._home(str(tmp_path), "", 1)


class Meeting:
    """Lets calls of a method begin together."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
        self._call: Callable[..., Any] = getattr(owner, name)
        self._barrier = threading.Barrier(2)
        monkeypatch.setattr(owner, name, self)

    def __call__(self, *args: Any, **named: Any) -> Any:
        with suppress(threading.BrokenBarrierError):
            self._barrier.wait(MEET_S)
        return self._call(*args, **named)


def twice(call: Callable[[], object]) -> None:
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(call) for _ in range(2)]:
            done.result(TIMEOUT_S)


@pytest.mark.parametrize("meeting", ["place", "_move_into_place", "record"])
def test_a_checkpoint_is_published_once(
    agent: HomeAgent, home: LocalHome, monkeypatch: pytest.MonkeyPatch, meeting: str
) -> None:
    attempt = sealed(home.committer, {"a": b"1", "sub/b": b"22"})
    Meeting(monkeypatch, home.committer, meeting)
    twice(lambda: agent.call(str(home.root), "", 1, "publish", CHECKPOINT, False, [attempt]))
    assert (home.root / CHECKPOINT / "sub/b").read_bytes() == b"22"
    assert home.info(manifest_key(CHECKPOINT)) is not None


def test_who_is_late_does_not_take_away_what_the_first_one_has_placed(
    agent: HomeAgent, home: LocalHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, order = sealed(home.committer, {"a": b"1"}), threading.Lock()
    move = home.committer._move_into_place

    def one_by_one(*args: Any) -> None:
        with order:
            move(*args)

    monkeypatch.setattr(home.committer, "_move_into_place", one_by_one)
    Meeting(monkeypatch, home.committer, "_write_intent")
    twice(lambda: agent.call(str(home.root), "", 1, "publish", CHECKPOINT, False, [attempt]))
    assert (home.root / CHECKPOINT / "a").read_bytes() == b"1"


def test_a_checkpoint_is_published_by_whoever_comes_after_a_kill(
    agent: HomeAgent, home: LocalHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = [sealed(home.committer, {f"of_{rank}": b"1"}, rank=rank) for rank in (0, 1)]

    def publish() -> object:
        return agent.call(str(home.root), "", 1, "publish", CHECKPOINT, False, attempts)

    def killed(key: str) -> None:
        raise SystemExit(key)

    monkeypatch.setattr(home.committer, "_discard", killed)
    with pytest.raises(SystemExit, match="staging"):
        publish()
    monkeypatch.undo()
    publish()
    assert sorted(path.name for path in (home.root / CHECKPOINT).iterdir()) == ["of_0", "of_1"]
    assert not home.store.list(f"{STAGING_DIR}/{CHECKPOINT}")
    publish()
    other = sealed(home.committer, {"a": b"2"})
    with pytest.raises(ImmutableError):
        agent.call(str(home.root), "", 1, "publish", CHECKPOINT, False, [other])


def test_an_older_seal_that_comes_again_takes_nothing_from_a_later_one(home: LocalHome) -> None:
    attempt = sealed(home.committer, {"a": b"1"})
    (first,) = home.committer._seals(CHECKPOINT)
    home.write(f"{staged_key(CHECKPOINT, attempt)}/b", 0, b"22")
    second = FileEntry("b", 2, digest_of(b"22"))
    home.seal(CHECKPOINT, replace(first, sealed_s=2.0, files=(*first.files, second)))
    home.seal(CHECKPOINT, first)
    placed = home.committer.place(CHECKPOINT).manifest
    assert [file.path for file in placed.files] == ["a", "b"]


def test_seals_of_one_attempt_are_in_order_though_a_clock_is_set_back(home: LocalHome) -> None:
    times_s = iter([2.0, 1.0])
    upload = CheckpointUpload(home, CHECKPOINT, 0, lambda: next(times_s))
    for name in ("a", "b"):
        upload.add_small(name, b"1", digest_of(b"1"))
        assert upload.seal()
    placed = home.committer.place(CHECKPOINT).manifest
    assert [file.path for file in placed.files] == ["a", "b"]


def test_a_file_is_not_replaced_by_what_comes_late_and_again(
    home: LocalHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    incoming = home.begin_file()
    home.write(incoming, 0, b"first")
    home.write(incoming, 5, b"last")
    home.commit_file(incoming, "trial/log.txt", durable=False)
    write_at = home.store.write_at

    def write_late(*args: Any) -> None:
        write_at(*args)
        home.commit_file(incoming, "trial/log.txt", durable=False)

    monkeypatch.setattr(home.store, "write_at", write_late)
    with pytest.raises(FileNotFoundError, match="too late"):
        home.write(incoming, 5, b"last")
    assert (home.root / "trial/log.txt").read_bytes() == b"firstlast"
    assert not home.store.list(INCOMING_DIR)


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_put_in_its_place_once(
    home: LocalHome, monkeypatch: pytest.MonkeyPatch, *, durable: bool
) -> None:
    incoming = home.begin_file()
    home.write(incoming, 0, b"state")
    Meeting(monkeypatch, home.store, "rename")
    twice(lambda: home.commit_file(incoming, "trial/result.json", durable))
    assert (home.root / "trial/result.json").read_bytes() == b"state"


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_that_was_swept_meanwhile_is_an_error_though_an_older_one_is_there(
    home: LocalHome, monkeypatch: pytest.MonkeyPatch, *, durable: bool
) -> None:
    older, newer = home.begin_file(), home.begin_file()
    home.write(older, 0, b"old")  # of another length: their times may be equal
    home.write(newer, 0, b"newer")
    home.commit_file(older, "trial/result.json", durable)
    rename = home.store.rename

    def late(*args: str) -> None:
        monkeypatch.undo()
        home.committer.sweep()
        rename(*args)

    monkeypatch.setattr(home.store, "rename", late)
    with pytest.raises(FileNotFoundError):
        home.commit_file(newer, "trial/result.json", durable)
    assert (home.root / "trial/result.json").read_bytes() == b"old"


def test_a_disk_that_hangs_keeps_no_other_experiment_from_publishing(
    agent: HomeAgent, home: LocalHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, answers = threading.Event(), threading.Event()

    def hang(*args: object) -> tuple[()]:
        hangs.set()
        assert answers.wait(TIMEOUT_S)
        return ()

    monkeypatch.setattr(home, "publish", hang)
    other = tmp_path / "other"
    (other / FORMAT_KEY).parent.mkdir(parents=True)
    (other / FORMAT_KEY).write_text("{}")
    attempt = sealed(agent._home(str(other), "", 1).committer, {"a": b"1"})

    def publish(root: Path) -> object:
        return agent.call(str(root), "", 1, "publish", CHECKPOINT, False, [attempt])

    with ThreadPoolExecutor(2) as pool:
        try:
            pool.submit(publish, tmp_path)
            assert hangs.wait(TIMEOUT_S)
            pool.submit(publish, other).result(TIMEOUT_S / 2)
        finally:
            answers.set()
    assert (other / CHECKPOINT / "a").read_bytes() == b"1"


def test_a_file_that_never_came_is_an_error(home: LocalHome) -> None:
    with pytest.raises(FileNotFoundError):
        home.commit_file(home.begin_file(), "trial/result.json", durable=True)


def test_a_small_file_comes_in_one_message_and_again_without_harm(
    home: LocalHome, agent: HomeAgent
) -> None:
    first, second = (f"{INCOMING_DIR}/{name * 32}" for name in "ab")

    def put(incoming: str, data: bytes, digest: str = "") -> None:
        to = str(home.root), "", 1, incoming, "trial/log.txt"
        agent.put_file(*to, digest or digest_of(data), data, False)

    put(first, b"old")
    put(second, b"new")
    put(first, b"old")  # its answer was lost, and another one came since
    assert (home.root / "trial/log.txt").read_bytes() == b"new"
    with pytest.raises(DamagedError, match=r"trial/log\.txt.*damaged"):
        put(f"{INCOMING_DIR}/{'c' * 32}", b"on the way", digest_of(b"changed"))
    assert (home.root / "trial/log.txt").read_bytes() == b"new"
    assert not home.store.list(INCOMING_DIR)


def test_a_small_file_that_was_given_up_is_not_put_when_it_comes_late(
    home: LocalHome, agent: HomeAgent
) -> None:
    incoming = f"{INCOMING_DIR}/{'a' * 32}"
    home.drop_file(incoming)
    agent.put_file(str(home.root), "", 1, incoming, "trial/a", digest_of(b"a"), b"a", False)
    assert not (home.root / "trial/a").exists()
    with pytest.raises(PathRefusedError):
        agent.put_file(str(home.root), "", 1, "trial/b", "trial/a", digest_of(b"a"), b"a", False)


def test_a_small_file_that_comes_twice_at_once_is_put_once(
    home: LocalHome, agent: HomeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one comes to write after the first has put it in its place."""
    incoming, make_dir = f"{INCOMING_DIR}/{'a' * 32}", home.store.make_dir
    to = str(home.root), "", 1, incoming, "trial/a", digest_of(b"a"), b"a", False

    def first_is_faster(key: str) -> None:
        monkeypatch.setattr(home.store, "make_dir", make_dir)
        agent.put_file(*to)
        make_dir(key)

    monkeypatch.setattr(home.store, "make_dir", first_is_faster)
    agent.put_file(*to)
    assert (home.root / "trial/a").read_bytes() == b"a"
    assert not home.store.list(INCOMING_DIR)
