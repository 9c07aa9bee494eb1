"""One process's part of a checkpoint: what arrives, and what happens when something fails."""

from __future__ import annotations

import errno
import os
import threading
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.unit.staged import CHECKPOINT
from tune_sync.errors import NotWholeError, PathRefusedError, StoreFullError
from tune_sync.homes.digests import digest_of
from tune_sync.homes.home import LocalHome, Piece
from tune_sync.layout import staged_key
from tune_sync.testing.fault_store import Fault, FaultStore, full, os_error
from tune_sync.transfer import chunks
from tune_sync.transfer import upload as upload_module
from tune_sync.transfer.upload import BATCH_BYTES, SMALL_BYTES, CheckpointUpload

CHUNK_BYTES = 3000


class CountingHome(LocalHome):
    """Notes which calls carried data."""

    def __init__(self, root: Path, *faults: Fault) -> None:
        super().__init__(root)
        self.faulty = FaultStore(self.store, *faults)
        self.store = self.faulty  # type: ignore[assignment]
        self.committer.store = self.faulty
        self.writes: list[tuple[str, int, int]] = []
        self.batches: list[int] = []
        self.discarded: list[str] = []

    def write(self, key: str, offset_bytes: int, data: bytes | memoryview) -> None:
        self.writes.append((key.rsplit("/", 1)[-1], offset_bytes, len(data)))
        super().write(key, offset_bytes, data)

    def write_batch(self, pieces: Sequence[Piece], data: bytes | bytearray | memoryview) -> None:
        self.batches.append(len(pieces))
        super().write_batch(pieces, data)

    def discard_attempt(self, checkpoint: str, attempt: str) -> None:
        self.discarded.append(attempt)
        super().discard_attempt(checkpoint, attempt)


@pytest.fixture
def home(tmp_path: Path) -> CountingHome:
    return CountingHome(tmp_path / "home")


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_BYTES", CHUNK_BYTES)
    monkeypatch.setattr(upload_module, "SMALL_BYTES", 100)


def published(home: LocalHome, upload: CheckpointUpload) -> dict[str, bytes]:
    """Publish, and return what is at the checkpoint, by name."""
    home.publish(CHECKPOINT, False, [upload.attempt])
    root = home.root / CHECKPOINT
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else b"<dir>"
        for path in root.rglob("*")
    }


def write(upload: CheckpointUpload, inner: str, *pieces: bytes) -> None:
    with upload.open(inner) as stream:
        for piece in pieces:
            assert stream.write(piece) == len(piece)


def test_files_and_directories_arrive_and_the_manifest_says_the_same(home: CountingHome) -> None:
    upload = CheckpointUpload(home, CHECKPOINT, rank=0)
    upload.make_dir("empty/inner")
    write(upload, "a", b"1", b"2")
    write(upload, "sub/b", b"")
    assert upload.seal()
    found = published(home, upload)
    assert found == {
        "empty": b"<dir>", "empty/inner": b"<dir>", "a": b"12", "sub": b"<dir>", "sub/b": b"",
    }  # fmt: skip
    manifest = home.committer.manifest(CHECKPOINT)
    assert manifest is not None
    assert {f.path: (f.size_bytes, f.digest) for f in manifest.files} == {
        "a": (2, digest_of(b"12")), "sub/b": (0, digest_of(b"")),
    }  # fmt: skip


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("piece_bytes", [1, 99, 2999, 3000, 3001, 10_001])
def test_a_large_file_is_the_same_however_it_is_written(
    home: CountingHome, piece_bytes: int
) -> None:
    data = os.urandom(10_001)
    upload = CheckpointUpload(home, CHECKPOINT, rank=0)
    pieces = [data[at : at + piece_bytes] for at in range(0, len(data), piece_bytes)]
    write(upload, "large", *pieces)
    upload.seal()
    assert published(home, upload) == {"large": data}
    # One to send and one that is filling, at most.
    assert max(size_bytes for _, _, size_bytes in home.writes) < 2 * CHUNK_BYTES


def test_small_files_travel_together(home: CountingHome) -> None:
    upload = CheckpointUpload(home, CHECKPOINT, rank=0)
    for number in range(1000):
        write(upload, f"d/{number}", number.to_bytes(2, "big"))
    upload.seal()
    assert home.batches == [1000]
    assert home.writes == []
    found = published(home, upload)
    assert found["d/999"] == (999).to_bytes(2, "big")
    assert len(found) == 1001


def test_a_batch_leaves_when_it_is_full(home: CountingHome) -> None:
    upload = CheckpointUpload(home, CHECKPOINT, rank=0)
    for number in range(2 * BATCH_BYTES // SMALL_BYTES):
        write(upload, f"{number}", bytes(SMALL_BYTES))
    upload.seal()
    assert home.batches == [BATCH_BYTES // SMALL_BYTES] * 2


def test_a_file_of_this_node_is_sent_as_it_is(home: CountingHome, tmp_path: Path) -> None:
    source = tmp_path / "large"
    source.write_bytes(os.urandom(SMALL_BYTES + 1))
    (tmp_path / "empty").touch()
    upload = CheckpointUpload(home, CHECKPOINT, rank=0)
    upload.add_file("large", source)
    upload.add_file("empty", tmp_path / "empty")
    upload.seal()
    assert published(home, upload) == {"large": source.read_bytes(), "empty": b""}


def test_a_file_is_read_into_no_more_of_the_heap_than_it_has(
    home: CountingHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home, "keeps_chunks", False)
    source = tmp_path / "large"
    source.write_bytes(os.urandom(10 * SMALL_BYTES))
    upload = CheckpointUpload(home, CHECKPOINT, rank=0)
    tracemalloc.start()
    try:
        upload.add_file("large", source)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    upload.seal()
    assert most_bytes < 2 * source.stat().st_size
    assert published(home, upload) == {"large": source.read_bytes()}


@pytest.mark.parametrize("size_bytes", [10, SMALL_BYTES + 1])
def test_hard_links_travel_once_and_are_hard_links_again(
    home: CountingHome, tmp_path: Path, size_bytes: int
) -> None:
    source = tmp_path / "one"
    source.write_bytes(os.urandom(size_bytes))
    upload = CheckpointUpload(home, CHECKPOINT, rank=0)
    upload.add_file("one", source)
    upload.add_file("two", source, same_as="one")
    upload.seal()
    assert published(home, upload) == {"one": source.read_bytes(), "two": source.read_bytes()}
    assert len(home.writes) + sum(home.batches) == 1
    assert os.path.samefile(home.root / CHECKPOINT / "one", home.root / CHECKPOINT / "two")


def test_many_threads_may_write_at_once(home: CountingHome) -> None:
    upload = CheckpointUpload(home, CHECKPOINT, rank=0)

    def work(number: int) -> None:
        for each in range(50):
            write(upload, f"{number}/{each}", f"{number} {each}".encode())
        write(upload, f"{number}/large", bytes([number]) * (SMALL_BYTES + number))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    upload.seal()
    found = published(home, upload)
    for number in range(8):
        assert found[f"{number}/large"] == bytes([number]) * (SMALL_BYTES + number)
        for each in range(50):
            assert found[f"{number}/{each}"] == f"{number} {each}".encode()


def test_nothing_is_sealed_while_a_file_is_being_written(home: CountingHome) -> None:
    upload = CheckpointUpload(home, CHECKPOINT, rank=0)
    write(upload, "a", b"1")
    stream = upload.open("b")
    assert not upload.seal()
    with pytest.raises(NotWholeError):
        home.publish(CHECKPOINT, False, [upload.attempt])
    stream.write(b"2")
    stream.close()
    stream.close()
    assert upload.seal()
    assert published(home, upload) == {"a": b"1", "b": b"2"}


def test_sealing_again_does_nothing_unless_there_is_more(home: CountingHome) -> None:
    upload = CheckpointUpload(home, CHECKPOINT, rank=0)
    write(upload, "a", b"1")
    assert upload.seal()
    assert upload.is_over
    calls_count = len(home.faulty.calls)
    assert not upload.seal()
    assert len(home.faulty.calls) == calls_count
    write(upload, "b", b"2")
    assert not upload.is_over
    assert upload.seal()
    assert published(home, upload) == {"a": b"1", "b": b"2"}


def test_a_file_whose_writer_failed_is_not_part_of_it(home: CountingHome) -> None:
    upload = CheckpointUpload(home, CHECKPOINT, rank=0)
    write(upload, "a", b"1")
    with pytest.raises(ZeroDivisionError), upload.open("b") as stream:
        stream.write(b"2")
        _ = 1 / 0
    upload.seal()
    assert published(home, upload) == {"a": b"1"}


WRITES = frozenset({"write_at"})


@pytest.mark.usefixtures("small_chunks")
def test_the_first_error_stays_the_error_and_the_attempt_is_dropped(tmp_path: Path) -> None:
    home = CountingHome(tmp_path / "home", Fault(2, full, verbs=WRITES))
    upload = CheckpointUpload(home, CHECKPOINT, rank=0)
    with pytest.raises(StoreFullError) as first:
        write(upload, "large", *[os.urandom(CHUNK_BYTES)] * 3)
    assert home.discarded == [upload.attempt]
    assert home.info(staged_key(CHECKPOINT, upload.attempt)) is None
    with pytest.raises(StoreFullError) as second:
        write(upload, "another", os.urandom(CHUNK_BYTES))
    assert second.value is first.value
    assert upload.is_over
    assert not upload.seal()
    with pytest.raises(NotWholeError):
        home.publish(CHECKPOINT, False, [upload.attempt])


@pytest.mark.parametrize("verb", ["write_at", "sync_tree", "rename", "sync"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_seal_that_fails_raises_and_leaves_nothing(tmp_path: Path, verb: str, when: str) -> None:
    fault = Fault(1, os_error(errno.EIO), when=when, verbs=frozenset({verb}))  # type: ignore[arg-type]
    home = CountingHome(tmp_path / "home", fault)
    upload = CheckpointUpload(home, CHECKPOINT, rank=0)
    write(upload, "a", b"1")
    with pytest.raises(OSError, match="Input/output error"):
        upload.seal()
    assert not upload.seal()
    assert home.committer.attempts("trial") == []
    again = CheckpointUpload(home, CHECKPOINT, rank=0)
    write(again, "b", b"2")
    again.seal()
    assert published(home, again) == {"b": b"2"}, "a retry holds the retry's files alone"


def test_writes_after_abort_fail_and_nothing_is_published(home: CountingHome) -> None:
    upload = CheckpointUpload(home, CHECKPOINT, rank=0)
    write(upload, "a", b"1")
    stream = upload.open("late")
    upload.abort()
    stream.write(bytes(SMALL_BYTES + 1))
    with pytest.raises(FileNotFoundError, match="was discarded"):
        stream.close()
    assert home.info(staged_key(CHECKPOINT, upload.attempt)) is None
    with pytest.raises(FileNotFoundError, match="was discarded"):
        upload.seal()  # what close raises gets lost
    assert not upload.seal()
    with pytest.raises(NotWholeError):
        home.publish(CHECKPOINT, False, [upload.attempt])


def test_a_seal_after_abort_raises(home: CountingHome) -> None:
    upload = CheckpointUpload(home, CHECKPOINT, rank=0)
    write(upload, "a", b"1")
    upload.abort()
    with pytest.raises((FileNotFoundError, NotWholeError)):
        upload.seal()


def test_an_abort_of_a_home_that_is_gone_is_no_second_error(tmp_path: Path) -> None:
    home = CountingHome(tmp_path / "home", Fault(2, full, lasting=True))
    upload = CheckpointUpload(home, CHECKPOINT, rank=0)
    write(upload, "a", b"1")
    with pytest.raises(StoreFullError):
        upload.seal()


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "a\0b", "."])
def test_a_name_that_leaves_the_checkpoint_is_refused(home: CountingHome, name: str) -> None:
    upload = CheckpointUpload(home, CHECKPOINT, rank=0)
    with pytest.raises(PathRefusedError):
        write(upload, name, b"1")


def test_a_slow_home_gets_all_bytes_in_order(tmp_path: Path) -> None:
    home = CountingHome(tmp_path / "home", Fault(1, delay_s=0.01, lasting=True, verbs=WRITES))
    upload = CheckpointUpload(home, CHECKPOINT, rank=0)
    data = os.urandom(3 * SMALL_BYTES)
    write(upload, "large", data[:SMALL_BYTES], data[SMALL_BYTES:])
    upload.seal()
    assert published(home, upload) == {"large": data}
