"""A checkpoint that spills to a bucket which fails: it is told, and at once where nothing helps."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.test_spilling import CHECKPOINT, Staging, Tight
from tune_sync.behind import arrivals
from tune_sync.behind.arrivals import Arrivals
from tune_sync.errors import StoreUnreachableError
from tune_sync.homes.bucket.home import BucketHome
from tune_sync.sending.backlog import Accepted
from tune_sync.testing.memory_bucket import MemoryBucket
from tune_sync.transfer.upload import CheckpointUpload


class Failing(MemoryBucket):
    """Fails once at what it is told to fail at."""

    fails_at = ""

    def put_stream(
        self, key: str, chunks: Iterable[bytes | memoryview], size_bytes: int | None = None
    ) -> str:
        data = b"".join(bytes(chunk) for chunk in chunks)
        self._fail("stream")
        return self.put(key, data)

    def put(self, key: str, data: bytes | memoryview, **how: Any) -> str:
        if key.endswith("/small"):
            self._fail("small")
        return super().put(key, data, **how)

    def _fail(self, at: str) -> None:
        if self.fails_at == at:
            self.fails_at = ""
            raise StoreUnreachableError("the bucket does not answer")


@pytest.mark.parametrize(("at", "size_bytes"), [("stream", 20 << 20), ("small", 10)])
def test_a_file_that_failed_on_its_way_to_a_bucket_is_never_told_as_stored(
    tmp_path: Path, at: str, size_bytes: int
) -> None:
    bucket, source = Failing(), tmp_path / "source"
    bucket.fails_at = at
    source.write_bytes(bytes(size_bytes))
    slept: list[float] = []
    staging = Staging(BucketHome(bucket), Tight(tmp_path / "node", 0))
    staging._local._sleep = slept.append
    upload = CheckpointUpload(staging, CHECKPOINT, 0)
    with pytest.raises(StoreUnreachableError, match="does not answer"):
        upload.add_file("small", source)
        upload.copied(1)
        upload.seal()
    assert len(slept) <= 2, "it waits for what will not change"


def test_what_fails_again_and_again_lets_others_go_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrivals, "warn_of_conflicts", lambda *args: None)
    names = [f"t/checkpoint_{number:06d}" for number in range(3)]
    published: list[str] = []
    is_away = False

    def place(checkpoint: str, **how: Any) -> Any:
        if is_away or checkpoint in names[:2]:
            raise PermissionError(checkpoint)
        return SimpleNamespace(manifest=SimpleNamespace(checkpoint=checkpoint), conflicts=())

    committer = SimpleNamespace(place=place, record=lambda manifest: None)
    home: Any = SimpleNamespace(committer=committer, publish_at_once=1)
    found = Arrivals(home, published.append, lambda checkpoint, error: None)
    found.publish([Accepted(name) for name in names[:2]])
    is_away = True
    found.publish([Accepted(name) for name in names])
    is_away = False
    for _ in range(3):
        found.publish([Accepted(name) for name in names])
    assert names[2] in published
