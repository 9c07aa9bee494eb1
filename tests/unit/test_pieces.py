"""What an upload keeps is what it was given, though whoever gave it may use its memory again."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from tune_sync.buckets.pieces import is_piece, kept, piece_of
from tune_sync.homes.bucket import streams
from tune_sync.homes.bucket.home import BucketHome
from tune_sync.new_pages import new_pages
from tune_sync.testing.memory_bucket import MemoryBucket
from tune_sync.transfer import chunks
from tune_sync.transfer import upload as uploading
from tune_sync.transfer.upload import CheckpointUpload

C0 = "trial/checkpoint_000000"
DATA = random.Random(3).randbytes(10_007)


class KeepingBucket(MemoryBucket):
    """Looks at chunks only when all of them are there."""

    def put_stream(
        self, key: str, chunks: Iterable[bytes | memoryview], size_bytes: int | None = None
    ) -> str:
        return self.put(key, b"".join([kept(chunk) for chunk in [*map(kept, chunks)]]))


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "WHOLE_BYTES", 3000)
    monkeypatch.setattr(streams, "PIECE_BYTES", 700)
    monkeypatch.setattr(uploading, "SMALL_BYTES", 100)
    monkeypatch.setattr(uploading, "DIRECT_BYTES", 1000)
    monkeypatch.setattr(uploading, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(chunks, "DIRECT_BYTES", 400)
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 1000)


def test_memory_that_may_be_filled_again_is_copied_and_any_other_is_not() -> None:
    filled_again = bytearray(b"first")
    piece = piece_of(memoryview(filled_again))
    filled_again[:] = b"other"
    assert bytes(piece) == b"first"
    for chunk in (memoryview(DATA)[5:], memoryview(new_pages(10))[2:], piece):
        assert is_piece(chunk) and piece_of(chunk) is chunk and kept(chunk) is chunk
    assert not is_piece(memoryview(filled_again))


@pytest.mark.parametrize("size_bytes", [1500, 2999, 10_007])
@pytest.mark.parametrize("again", [True, False])
def test_a_file_whose_chunks_wait_is_what_was_read(
    tmp_path: Path, again: bool, size_bytes: int
) -> None:
    bucket = KeepingBucket()
    home = BucketHome(bucket)
    home.keeps_chunks = not again
    source = tmp_path / "x"
    source.write_bytes(DATA[:size_bytes])
    upload = CheckpointUpload(home, C0, 0)
    upload.add_file("x", source)
    assert upload.seal()
    assert bucket.objects[f"{C0}/x"] == DATA[:size_bytes]


@pytest.mark.parametrize("step", [500, 1700, 9000])
def test_what_is_written_from_one_buffer_is_what_was_in_it(step: int) -> None:
    bucket = KeepingBucket()
    upload = CheckpointUpload(BucketHome(bucket), C0, 0)
    buffer = bytearray(step)
    with upload.open("x") as stream:
        for at in range(0, len(DATA), step):
            size_bytes = len(DATA[at : at + step])
            buffer[:size_bytes] = DATA[at : at + step]
            stream.write(memoryview(buffer)[:size_bytes])
    assert upload.seal()
    assert bucket.objects[f"{C0}/x"] == DATA
