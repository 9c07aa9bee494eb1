"""`BucketHome`: who may put what, and when."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Callable

import pytest

from tune_sync.buckets import engines
from tune_sync.buckets.bucket import MAX_OBJECT_BYTES, Capabilities, ObjectInfo
from tune_sync.buckets.opening import open_bucket
from tune_sync.buckets.url import parse_bucket_url
from tune_sync.errors import (
    ConfigError,
    ImmutableError,
    NotWholeError,
    PathRefusedError,
    TuneSyncError,
)
from tune_sync.homes.bucket import home as bucket_home
from tune_sync.homes.bucket import streams as bucket_streams
from tune_sync.homes.bucket.home import (
    OVER_KEPT_COUNT,
    PUBLISHING_S,
    SEALED_KEPT_COUNT,
    BucketHome,
)
from tune_sync.homes.bucket.staging import BEGUN, SEAL, final_key, mark_key
from tune_sync.homes.digests import digest_of
from tune_sync.homes.home import Piece
from tune_sync.layout import MARKER, staged_key
from tune_sync.manifest import FileEntry, Seal
from tune_sync.testing.memory_bucket import MemoryBucket

C0 = "trial/checkpoint_000000"


class Interrupted(MemoryBucket):
    """Lets something happen right after a look at the mark of an attempt."""

    def __init__(self) -> None:
        super().__init__()
        self.then: list[Callable[[], None]] = []

    def info(self, key: str) -> ObjectInfo | None:
        found = super().info(key)
        if key.endswith("/" + BEGUN) and self.then:
            self.then.pop()()
        return found


def write(home: BucketHome, attempt: str, data: bytes, *, chunks: bool) -> None:
    key = f"{staged_key(C0, attempt)}/x"
    if not chunks:
        home.write_batch([Piece(key, 0, len(data))], data)
        home.flush(key)
        return
    half = len(data) // 2
    home.write(key, 0, data[:half])
    home.write(key, half, data[half:])
    home.finish(key)
    home.flush(key)


def publish_other(bucket: MemoryBucket, late: str, data: bytes) -> None:
    """What a driver and another worker do meanwhile."""
    home = BucketHome(bucket)
    home.committer.discard_attempt(C0, late)
    attempt = home.begin(C0)
    write(home, attempt, data, chunks=False)
    files = (FileEntry("x", len(data), digest_of(data)),)
    home.seal(C0, Seal(attempt, 0, 1.0, files))
    home.publish(C0, False, [attempt])


@pytest.mark.parametrize("chunks", [False, True])
def test_a_late_writer_never_writes_over_what_is_published(chunks: bool) -> None:
    bucket = Interrupted()
    home = BucketHome(bucket)
    late = home.begin(C0)
    bucket.then.append(lambda: publish_other(bucket, late, b"new"))
    with pytest.raises(TuneSyncError):
        write(home, late, b"late bytes", chunks=chunks)
    assert bucket.objects[f"{C0}/x"] == b"new"


def test_an_upload_in_parts_is_given_up_where_its_attempt_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bucket_streams, "WHOLE_BYTES", 10)
    bucket = MemoryBucket()
    home = BucketHome(bucket)
    late = home.begin(C0)
    key = f"{staged_key(C0, late)}/x"
    home.write(key, 0, b"late bytes, more than ten")
    publish_other(bucket, late, b"new")
    with pytest.raises(NotWholeError):
        home.finish(key)
    assert bucket.objects[f"{C0}/x"] == b"new"


@pytest.mark.parametrize("whole_bytes", [10, 1000])
def test_bytes_arrive_in_parts_or_whole(monkeypatch: pytest.MonkeyPatch, whole_bytes: int) -> None:
    monkeypatch.setattr(bucket_streams, "WHOLE_BYTES", whole_bytes)
    bucket = MemoryBucket()
    home = BucketHome(bucket)
    attempt = home.begin(C0)
    data = bytes(range(100))
    write(home, attempt, data, chunks=True)
    assert bucket.objects[f"{C0}/x"] == data


def test_of_a_file_that_is_written_again_the_later_bytes_are_published() -> None:
    bucket = MemoryBucket()
    home = BucketHome(bucket)
    attempt = home.begin(C0)
    for data in (b"first", b"again"):
        write(home, attempt, data, chunks=False)
    files = (FileEntry("x", 5, digest_of(b"again")),)
    home.seal(C0, Seal(attempt, 0, 0.0, files))
    home.publish(C0, False, [attempt])
    assert bucket.objects[f"{C0}/x"] == b"again"


class Panic(BaseException):
    """What a library in Rust raises where it gives up."""


class Panicking(MemoryBucket):
    def put_stream(self, key: str, chunks: object, size_bytes: int | None = None) -> str:
        raise Panic


class Narrow(MemoryBucket):
    """As pyarrow's, but smaller."""

    stream_bytes, unknown_bytes, larger = 200, 100, "use another library"

    @property
    def capabilities(self) -> Capabilities:
        given = (self.stream_bytes, self.unknown_bytes, self.larger)
        return Capabilities(True, True, *given)


def test_a_file_that_is_too_large_is_told_before_any_of_it_is_sent() -> None:
    home = BucketHome(Narrow())
    key = f"{staged_key(C0, home.begin(C0))}/x"
    with pytest.raises(ConfigError, match=r"more than 200 bytes .* use another library"):
        home.expect(key, 201)
    home.expect(key, 200)
    home.write(key, 0, b"x" * 200)
    home.finish(key)


@pytest.mark.parametrize("larger", ["use another library", ""])
def test_a_file_that_grows_too_large_is_told_when_it_does(
    monkeypatch: pytest.MonkeyPatch, larger: str
) -> None:
    monkeypatch.setattr(Narrow, "larger", larger)
    home = BucketHome(Narrow())
    key = f"{staged_key(C0, home.begin(C0))}/x"
    home.write(key, 0, b"x" * 100)
    with pytest.raises(ConfigError, match=larger or r"tune_sync.Checkpoint.* tells the size"):
        home.write(key, 100, b"x")


@pytest.mark.parametrize("other", ["obstore", "s3fs", ""])
def test_what_can_be_sent_with_pyarrow_is_known(
    monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    monkeypatch.setattr(engines, "_is_installed", lambda library: library == other)
    bucket = open_bucket(parse_bucket_url("s3://bucket/x"), {"engine": "pyarrow", "anon": True})
    can = bucket.capabilities
    assert can.unknown_bytes == 10_000 * (10 << 20)
    assert can.stream_bytes == (MAX_OBJECT_BYTES if other else can.unknown_bytes)
    assert ("pip install obstore" in can.larger) == (not other)


def test_a_panic_of_a_library_is_an_error_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_streams, "WHOLE_BYTES", 10)
    home = BucketHome(Panicking())
    attempt = home.begin(C0)
    with pytest.raises(OSError, match="Panic"):
        write(home, attempt, b"x" * 100, chunks=True)


def test_empty_directories_are_there_to_be_asked_for() -> None:
    home = BucketHome(MemoryBucket())
    almost_ours = ".tune_sync-x/checkpoint_000000"
    empty = {C0: ("empty",), "trial/checkpoint_000001": (), almost_ours: ()}
    for checkpoint, directories in empty.items():
        attempt = home.begin(checkpoint)
        home.seal(checkpoint, Seal(attempt, 0, 1.0, (), directories))
        home.publish(checkpoint, False, [attempt])
    found = home.info(f"{C0}/empty")
    assert found is not None and found.is_dir
    assert [e.key for e in home.list(C0, True)] == [f"{C0}/empty"]
    for alone in ("trial/checkpoint_000001", almost_ours):
        only_itself = home.info(alone)
        assert only_itself is not None and only_itself.is_dir
    assert home.info(f"{C0}/none") is None and home.info("trial/checkpoint_000002") is None


def test_e_tags_of_attempts_of_long_ago_are_kept_no_more() -> None:
    bucket = MemoryBucket()
    home = BucketHome(bucket)
    for number in range(3 * SEALED_KEPT_COUNT):
        checkpoint = f"trial/checkpoint_{number:06d}"
        attempt = home.begin(checkpoint)
        key = f"{staged_key(checkpoint, attempt)}/x"
        home.write_batch([Piece(key, 0, 4)], b"body")
        home.seal(checkpoint, Seal(attempt, 0, 1.0, (FileEntry("x", 4, digest_of(b"body")),)))
        home.write_batch([Piece(f"{key}2", 0, 4)], b"more")
        more = tuple(FileEntry(n, 4, digest_of(b)) for n, b in (("x", b"body"), ("x2", b"more")))
        home.seal(checkpoint, Seal(attempt, 0, 2.0, more))
        kept = json.loads(bucket.objects[mark_key(checkpoint, attempt, SEAL)])
        assert set(kept["etags"]) == {"x", "x2"}
    assert len(home._etags) == len(home._sealed) == SEALED_KEPT_COUNT
    home.discard_attempt(checkpoint, attempt)
    assert len(home._etags) == len(home._sealed) == SEALED_KEPT_COUNT - 1


def test_discarded_attempts_of_long_ago_are_kept_no_more() -> None:
    home = BucketHome(MemoryBucket())
    for _ in range(OVER_KEPT_COUNT + 5):
        home.discard_attempt(C0, uuid.uuid4().hex)
    assert len(home._over) == OVER_KEPT_COUNT


@pytest.mark.parametrize("checkpoint", [C0, "checkpoint_2026-01-01_10-00-00.000001"])
def test_bytes_go_to_where_ray_looks_for_them(checkpoint: str) -> None:
    staged_data = staged_key(checkpoint, "id")
    assert final_key(f"{staged_data}/a/data/checkpoint_000009/b") == (
        f"{checkpoint}/a/data/checkpoint_000009/b"
    )
    assert final_key(staged_data) == checkpoint


@pytest.mark.parametrize(
    "key", [f"{C0}/x", mark_key(C0, "id", BEGUN), staged_key(C0, "id") + "/../../x", "x"]
)
def test_other_keys_are_refused(key: str) -> None:
    with pytest.raises(PathRefusedError):
        final_key(key)


def test_rays_marker_is_looked_for_until_it_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = MemoryBucket()
    home = BucketHome(bucket)
    assert home.info(MARKER) is None
    bucket.put(MARKER, b"")
    assert home.info(MARKER) is not None
    monkeypatch.setattr(bucket, "info", lambda key: pytest.fail(f"a look at {key}"))
    found = home.info(MARKER)
    assert found is not None and not found.is_dir


@pytest.mark.parametrize(("inside", "depth"), [("", 1), ("trial/inner", 0)])
def test_a_directory_that_holds_published_checkpoints_is_not_removed_as_such(
    inside: str, depth: int
) -> None:
    bucket = MemoryBucket()
    manifest = f"{inside}/.tune_sync/manifests/{C0 if depth else 'checkpoint_000000'}.json"
    for key in (f"{inside}/checkpoint_000000/x" if inside else f"{C0}/x", manifest):
        bucket.put(key.lstrip("/"), b"{}")
    before = bucket.list("")
    with pytest.raises(ImmutableError, match="checkpoint_000000: delete its checkpoints first"):
        BucketHome(bucket).remove("trial")
    assert bucket.list("") == before
    bucket.delete([manifest.lstrip("/")])
    BucketHome(bucket).remove("trial")
    assert bucket.list("") == []


def test_what_a_late_writer_left_beside_a_checkpoint_is_not_listed() -> None:
    bucket = MemoryBucket()
    home = BucketHome(bucket)
    attempt = home.begin(C0)
    write(home, attempt, b"x", chunks=False)
    home.seal(C0, Seal(attempt, 0, 1.0, (FileEntry("x", 1, digest_of(b"x")),), ("empty",)))
    home.publish(C0, False, [attempt])
    bucket.put(f"{C0}/late", b"of an attempt that was given up")
    assert [entry.key for entry in home.list(C0, True)] == [f"{C0}/empty", f"{C0}/x"]


def test_what_is_still_not_published_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the keys of a retry may lie files of the try before; its own wait aside meanwhile."""
    bucket = MemoryBucket()
    writer, first = BucketHome(bucket), BucketHome(bucket).begin(C0)
    write(writer, first, b"first", chunks=False)
    writer.discard_attempt(C0, first)
    second = writer.begin(C0)
    write(writer, second, b"other", chunks=False)
    writer.seal(C0, Seal(second, 0, 1.0, (FileEntry("x", 5, digest_of(b"other")),), ()))
    seconds = itertools.count(0.0, PUBLISHING_S)
    reader = BucketHome(bucket, clock=lambda: next(seconds))
    monkeypatch.setattr(bucket_home, "LOOK_S", 0.0)
    with pytest.raises(NotWholeError, match=rf"{C0} is still not published after 60 s"):
        reader.list(C0, True)
    writer.publish(C0, False, [second])
    assert [entry.key for entry in reader.list(C0, True)] == [f"{C0}/x"]
    assert reader.read(f"{C0}/x", 0, 10) == b"other"
