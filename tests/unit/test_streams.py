"""File objects for pyarrow: whole files or none, and reads at any position."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import random
from pathlib import Path

import pyarrow as pa
import pytest

from tune_sync import layout
from tune_sync.errors import DamagedError, HomeLostError, StoreFullError, SyncTimeoutError
from tune_sync.homes.digests import digest_of
from tune_sync.homes.home import LocalHome
from tune_sync.manifest import FileEntry
from tune_sync.testing.fault_store import Fault, FaultStore, full, os_error
from tune_sync.transfer import chunks, streams
from tune_sync.transfer.streams import FileStream, NullStream, ReadStream, open_reader

KEY = "trial/result.json"


@pytest.fixture
def home(tmp_path: Path) -> LocalHome:
    return LocalHome(tmp_path)


def stream_to(home: LocalHome, unless: str | None = None) -> FileStream:
    return FileStream(home, KEY, lambda stream: stream.commit(True, unless))


def test_a_file_appears_whole_when_it_is_closed(home: LocalHome) -> None:
    stream = stream_to(home)
    stream.write(b"one ")
    stream.write(memoryview(b"two"))
    stream.flush()
    assert home.info(KEY) is None
    stream.close()
    stream.close()
    assert (home.root / KEY).read_bytes() == b"one two"
    assert stream.digest == digest_of(b"one two")
    assert home.store.list(layout.INCOMING_DIR) == []


def test_readers_see_the_old_file_until_the_new_one_is_closed(home: LocalHome) -> None:
    for data in (b"old", b"newer"):
        stream = stream_to(home)
        stream.write(data)
        if data == b"newer":
            assert (home.root / KEY).read_bytes() == b"old"
        stream.close()
    assert (home.root / KEY).read_bytes() == b"newer"


def test_a_file_larger_than_a_chunk_is_sent_in_several(
    home: LocalHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 1000)
    data = os.urandom(4321)
    stream = stream_to(home)
    for at in range(0, len(data), 700):
        stream.write(data[at : at + 700])
    assert len(home.store.list(layout.INCOMING_DIR)) == 1
    stream.close()
    assert (home.root / KEY).read_bytes() == data


def test_an_empty_file_is_a_file(home: LocalHome) -> None:
    stream_to(home).close()
    assert (home.root / KEY).read_bytes() == b""


def test_a_file_that_was_sent_before_is_not_sent_again(home: LocalHome) -> None:
    first = stream_to(home)
    first.write(b"same")
    first.close()
    (home.root / KEY).write_bytes(b"looked at by someone else")
    again = stream_to(home, unless=first.digest)
    again.write(b"same")
    again.close()
    assert (home.root / KEY).read_bytes() == b"looked at by someone else"
    other = stream_to(home, unless=first.digest)
    other.write(b"different")
    other.close()
    assert (home.root / KEY).read_bytes() == b"different"


@pytest.mark.parametrize("verb", ["write_at", "sync", "rename"])
def test_a_file_that_fails_leaves_the_old_one(home: LocalHome, verb: str) -> None:
    old = stream_to(home)
    old.write(b"old")
    old.close()
    faults = FaultStore(home.store, Fault(1, os_error(errno.EIO), verbs=frozenset({verb})))
    home.store = home.committer.store = faults  # type: ignore[assignment]
    stream = stream_to(home)
    stream.write(b"new")
    with pytest.raises(OSError, match="Input/output error"):
        stream.close()
    assert (home.root / KEY).read_bytes() == b"old"
    assert home.store.list(layout.INCOMING_DIR) == []


@pytest.mark.parametrize("ends", ["close", "flush"])
def test_nothing_stays_of_a_file_that_finds_no_room_half_way(
    home: LocalHome, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 10)
    fault = Fault(3, full, lasting=True, verbs=frozenset({"write_at"}))
    home.store = home.committer.store = FaultStore(home.store, fault)  # type: ignore[assignment]
    stream = stream_to(home)
    stream.write(bytes(20))
    with pytest.raises(StoreFullError):
        stream.write(bytes(10))
    with contextlib.suppress(StoreFullError):  # pyarrow drops what the last call raises
        getattr(stream, ends)()
    assert home.store.list(layout.INCOMING_DIR) == []


def test_a_file_one_of_whose_chunks_failed_never_appears(
    home: LocalHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 10)
    fault = Fault(1, full, verbs=frozenset({"write_at"}))
    home.store = home.committer.store = FaultStore(home.store, fault)  # type: ignore[assignment]
    stream = stream_to(home)
    with pytest.raises(StoreFullError):
        stream.write(bytes(10))
    with pytest.raises(StoreFullError):
        stream.write(bytes(10))
    with pytest.raises(StoreFullError):
        stream.close()
    assert home.info(KEY) is None


@pytest.mark.parametrize("piece_bytes", [1, 9, 10, 11, 1000])
def test_bytes_are_the_same_however_they_are_written(
    home: LocalHome, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 10)
    monkeypatch.setattr(chunks, "DIRECT_BYTES", 7)
    data = os.urandom(543)
    stream = stream_to(home)
    for at in range(0, len(data), piece_bytes):
        assert stream.write(data[at : at + piece_bytes]) == len(data[at : at + piece_bytes])
    stream.close()
    assert (home.root / KEY).read_bytes() == data
    assert stream.digest == digest_of(data)


def test_names_that_are_not_stored_take_bytes_and_keep_none() -> None:
    stream = NullStream()
    assert stream.write(b"12") == 2
    stream.flush()
    stream.close()
    assert stream.closed


DATA = bytes(range(200))


@pytest.fixture
def reader(home: LocalHome) -> ReadStream:
    (home.root / "f").write_bytes(DATA)
    return ReadStream(home, "f", len(DATA))


def test_reads_are_those_of_an_ordinary_file(reader: ReadStream) -> None:
    plain, numbers = io.BytesIO(DATA), random.Random(7)
    for _ in range(200):
        if numbers.random() < 0.4:
            where = numbers.randrange(250)
            assert reader.seek(where) == plain.seek(where)
        length_bytes = numbers.choice([-1, 0, 1, 7, 500])
        assert bytes(reader.read(length_bytes)) == plain.read(length_bytes)
        assert reader.tell() == plain.tell()
    assert reader.seek(-3, 2) == len(DATA) - 3
    assert reader.seek(1, 1) == len(DATA) - 2
    assert reader.readable()
    assert reader.seekable()


def test_arrow_reads_it_at_once_and_in_parts(reader: ReadStream) -> None:
    file = pa.PythonFile(reader, mode="r")
    assert file.size() == len(DATA)
    assert file.read_at(5, 100) == DATA[100:105]
    file.seek(0)
    assert file.readall() == DATA
    file.close()
    assert reader.closed


def test_who_copies_gets_the_first_bytes_before_the_last_and_who_wants_all_gets_all(
    home: LocalHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "COPY_BYTES", 1000)
    data = os.urandom(3000)
    home.store.make_dir("trial")
    home.store.write_at(KEY, 0, data)
    stream = ReadStream(home, KEY, len(data), step_bytes=700)
    assert [len(stream.read(2000)) for _ in range(6)] == [700, 700, 700, 700, 200, 0]
    for position, length_bytes in ((0, -1), (0, 3000), (500, 900), (600, 2400)):
        stream.seek(position)
        end = None if length_bytes < 0 else position + length_bytes
        assert stream.read(length_bytes) == data[position:end]
    opened = pa.PythonFile(ReadStream(home, KEY, len(data), step_bytes=700), mode="r")
    assert opened.read() == data
    opened.seek(10)
    assert opened.readall() == data[10:]


def test_a_file_of_a_checkpoint_that_was_cut_short_since_it_was_opened_is_an_error(
    home: LocalHome,
) -> None:
    (home.root / "f").write_bytes(DATA)
    stream = open_reader(home, "f", "f", FileEntry("f", len(DATA), digest_of(DATA)))
    os.truncate(home.root / "f", 50)
    assert stream.read(100) == DATA[:50]
    with pytest.raises(DamagedError, match="ends after 50 bytes, 200 were stored"):
        stream.read(100)


@pytest.mark.parametrize("error", [HomeLostError("lost"), SyncTimeoutError("late")])
def test_nothing_stays_of_a_file_though_its_home_did_not_answer_for_a_while(
    home: LocalHome, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """It may answer again, or it was only a chunk that was lost."""

    def no_answer(*args: object) -> None:
        raise error

    monkeypatch.setattr(home, "commit_file", no_answer)
    stream = stream_to(home)
    stream.write(b"one")
    with pytest.raises(type(error)):
        stream.close()
    assert home.store.list(layout.INCOMING_DIR) == []


@pytest.mark.parametrize("data", [b"", b"small", bytes(chunks.SMALL_BYTES)])
def test_a_small_file_is_put_in_one_step(
    home: LocalHome, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    """Of a home that is elsewhere each step is a message, and a trial may have thousands."""
    steps: list[str] = []
    for name in ("begin_file", "write", "flush", "commit_file"):
        monkeypatch.setattr(home, name, lambda *args, name=name: steps.append(name))
    monkeypatch.setattr(home, "put_file", lambda key, data, durable: steps.append(bytes(data)))
    stream = stream_to(home)
    stream.write(data)
    stream.close()
    assert steps == [data]


@pytest.mark.parametrize("verb", ["write_at", "rename"])
def test_nothing_stays_of_a_small_file_that_found_no_room(home: LocalHome, verb: str) -> None:
    fault = Fault(1, full, when="half" if verb == "write_at" else "before", verbs=frozenset({verb}))
    home.store = home.committer.store = FaultStore(home.store, fault)  # type: ignore[assignment]
    with pytest.raises(StoreFullError):
        home.put_file(KEY, b"data", False)
    assert home.store.list(layout.INCOMING_DIR) == []
    assert home.info(KEY) is None
