"""Which requests are tried again, how often, and with which client."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

import pytest

from tune_sync.buckets.environment import missing_credentials
from tune_sync.buckets.retry import FIRST_PAUSE_S, LONGEST_PAUSE_S, Retry, RetryBucket
from tune_sync.errors import (
    ConfigError,
    PutConflictError,
    StoreDeniedError,
    StoreUnreachableError,
)
from tune_sync.testing.memory_bucket import MemoryBucket


class Scripted(MemoryBucket):
    """Raises what it is given, one error a request; then it works.

    Args:
        failures: In this order; None for a request that works.
        late: The request is done before it raises: only the answer is lost.
    """

    def __init__(self, *failures: Exception | None, late: bool = False) -> None:
        super().__init__()
        self._failures = list(failures)
        self._late = late
        self.tries_count = self.rebuilt_count = 0

    def rebuild(self) -> None:
        self.rebuilt_count += 1

    def get(self, key: str, offset_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        self._fail()
        return super().get(key, offset_bytes, length_bytes)

    def put(self, key: str, data: bytes, *, create_only: bool = False, if_match: str = "") -> str:
        if not self._late:
            self._fail()
        etag = super().put(key, data, create_only=create_only, if_match=if_match)
        if self._late:
            self._fail()
        return etag

    def _fail(self) -> None:
        self.tries_count += 1
        failure = self._failures.pop(0) if self._failures else None
        if failure is not None:
            raise failure


def over(client: MemoryBucket, tries_count: int = 4) -> tuple[RetryBucket, list[float]]:
    client.objects["x"] = b"1"
    pauses: list[float] = []
    retry = Retry(tries_count, sleep=pauses.append, dice=lambda: 1.0)
    return RetryBucket(lambda: client, "s3://b/x", retry), pauses


RESET = ConnectionResetError("reset by peer")
SLOW_DOWN = OSError("AWS Error SLOW_DOWN during GetObject operation: reduce your rate")
DENIED = PermissionError("Access Denied")
NO_BUCKET = OSError("<Code>NoSuchBucket</Code><Message>no</Message>")


def test_what_may_work_in_a_moment_is_tried_again_with_growing_pauses() -> None:
    client = Scripted(RESET, SLOW_DOWN, TimeoutError("timed out"))
    bucket, pauses = over(client)
    assert bucket.get("x") == b"1"
    assert pauses == [FIRST_PAUSE_S, FIRST_PAUSE_S * 2, FIRST_PAUSE_S * 4]


def test_there_is_a_last_try() -> None:
    client = Scripted(*[RESET] * 9)
    bucket, pauses = over(client, tries_count=4)
    with pytest.raises(StoreUnreachableError, match="s3://b/x: cannot read x"):
        bucket.get("x")
    assert (client.tries_count, len(pauses)) == (4, 3)


@pytest.mark.parametrize("error", [NO_BUCKET, ValueError("no"), FileNotFoundError("x")])
def test_what_will_not_work_in_a_moment_is_not_tried_again(error: Exception) -> None:
    client = Scripted(error)
    bucket, pauses = over(client)
    expected = ConfigError if error is NO_BUCKET else type(error)
    with pytest.raises(expected):
        bucket.get("x")
    assert (client.tries_count, pauses) == (1, [])


def test_refused_credentials_are_read_again_once() -> None:
    client = Scripted(DENIED)
    bucket, _ = over(client)
    assert bucket.get("x") == b"1"
    assert client.rebuilt_count == 1

    client = Scripted(DENIED, DENIED)
    bucket, pauses = over(client)
    with pytest.raises(StoreDeniedError):
        bucket.get("x")
    assert (client.rebuilt_count, client.tries_count, pauses) == (1, 2, [])


def test_a_stream_that_was_refused_leaves_a_new_client_for_the_next() -> None:
    client = Scripted(DENIED)
    bucket, _ = over(client)
    with pytest.raises(StoreDeniedError):
        bucket.put_stream("x", [b"1"])
    assert client.rebuilt_count == 1
    bucket.put_stream("x", [b"2"])
    assert bucket.get("x") == b"2"


def test_a_stream_is_not_started_again() -> None:
    client = Scripted(RESET)
    bucket, _ = over(client)
    with pytest.raises(StoreUnreachableError):
        bucket.put_stream("x", [b"1"])
    assert client.tries_count == 1


def test_a_stream_that_took_nothing_yet_is_begun_again() -> None:
    class NotConnected(Scripted):
        def put_stream(self, key: str, chunks: Iterable[bytes | memoryview], *size: object) -> str:
            self._fail()
            return super().put_stream(key, chunks)

    bucket, pauses = over(NotConnected(RESET, RESET))
    bucket.put_stream("x", iter([b"1", b"2"]))
    assert (bucket.get("x"), pauses) == (b"12", [0.3, 0.6])
    bucket, pauses = over(NotConnected(*[RESET] * 9))
    with pytest.raises(StoreUnreachableError):
        bucket.put_stream("x", iter([b"1", b"2"]))
    assert len(pauses) == 3


def test_what_the_source_of_a_stream_raises_is_not_taken_for_an_error_of_the_store() -> None:
    def chunks() -> Iterator[bytes]:
        yield b"1"
        raise TimeoutError("the trial is gone")

    bucket, _ = over(Scripted())
    with pytest.raises(TimeoutError, match="the trial is gone") as caught:
        bucket.put_stream("y", chunks())
    assert type(caught.value) is TimeoutError


def test_a_created_object_whose_answer_was_lost_is_no_conflict() -> None:
    client = Scripted(RESET, late=True)
    bucket, _ = over(client)
    etag = bucket.put("new", b"mine", create_only=True)
    found = bucket.info("new")
    assert found is not None and found.etag == etag


def test_an_object_of_another_writer_is_a_conflict_after_a_lost_answer_too() -> None:
    client = Scripted(RESET)
    bucket, _ = over(client)
    client.objects["new"] = b"theirs"
    with pytest.raises(PutConflictError):
        bucket.put("new", b"mine", create_only=True)
    assert client.objects["new"] == b"theirs"


def test_pauses_double_up_to_a_limit_and_half_of_each_is_by_chance() -> None:
    least, most = Retry(dice=lambda: 0.0), Retry(dice=lambda: 1.0)
    for tried_count in range(1, 20):
        assert most.pause_s(tried_count) == 2 * least.pause_s(tried_count) <= LONGEST_PAUSE_S
    assert most.pause_s(19) == LONGEST_PAUSE_S


def test_a_client_is_made_when_it_is_first_used_and_once() -> None:
    made: list[MemoryBucket] = []

    def make() -> MemoryBucket:
        made.append(MemoryBucket())
        return made[-1]

    bucket = RetryBucket(make, "memory://x")
    assert made == []
    bucket.put("x", b"1")
    bucket.put("y", b"1")
    assert len(made) == 1


def test_a_forked_process_makes_its_own_client() -> None:
    made: list[int] = []

    def make() -> MemoryBucket:
        made.append(os.getpid())
        return MemoryBucket()

    bucket = RetryBucket(make, "memory://x")
    bucket.put("x", b"1")
    assert in_child(lambda: (bucket.info("x") is None) and made[-1] == os.getpid())
    assert made == [os.getpid()] and bucket.info("x") is not None


def in_child(check: Callable[[], bool]) -> bool:
    pid = os.fork()
    if not pid:
        os._exit(0 if check() else 1)
    return os.waitpid(pid, 0)[1] == 0


def test_an_error_of_ours_is_raised_as_it_is_and_is_not_its_own_cause() -> None:
    ours = ConfigError("no such library")
    bucket, _ = over(Scripted(ours))
    with pytest.raises(ConfigError) as raised:
        bucket.get("x")
    assert raised.value is ours and ours.__cause__ is None


def asked_from_a_node(*failures: Exception) -> RetryBucket:
    client = Scripted(*failures)
    client.objects["x"] = b"1"
    retry = Retry(2, sleep=lambda pause_s: None)
    return RetryBucket(lambda: client, "s3://b/x", retry, here="node 7f (10.0.0.2)")


@pytest.mark.parametrize("error", [RESET, DENIED])
def test_a_node_that_never_had_an_answer_is_named_with_the_ways_out(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    bucket = asked_from_a_node(error, error)
    with pytest.raises((StoreDeniedError, StoreUnreachableError)) as failure:
        bucket.get("x")
    for part in (
        "cannot read x from node 7f (10.0.0.2)", "the driver has reached it", "runtime_env",
        "storage_options",
    ):  # fmt: skip
        assert part in str(failure.value)
    # What is tried for a minute is told at once, and not only after the last try.
    told = [record.getMessage() for record in caplog.records]
    assert ["node 7f (10.0.0.2)" in text for text in told] == [True] * (error is RESET)


def test_one_that_had_an_answer_before_is_named_alone() -> None:
    client = Scripted(None, RESET, RESET)
    client.objects["x"] = b"1"
    bucket = RetryBucket(
        lambda: client, "s3://b/x", Retry(2, sleep=lambda pause_s: None), here="node 7f"
    )
    bucket.get("x")
    with pytest.raises(StoreUnreachableError, match="from node 7f") as failure:
        bucket.get("x")
    assert "the driver" not in str(failure.value)


def test_a_refusal_says_that_there_are_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")

    def refusal(options: dict[str, str], error: Exception = DENIED) -> str:
        bucket = RetryBucket(
            lambda: Scripted(error, error), "s3://b/x",
            missing=lambda: missing_credentials("s3", options),
        )  # fmt: skip
        with pytest.raises(StoreDeniedError) as failure:
            bucket.get("x")
        return str(failure.value)

    assert "no credentials were found" in refusal({})
    assert "AWS_ACCESS_KEY_ID" in refusal({})
    assert "no credentials" not in refusal({}, OSError("<Code>InvalidObjectState</Code>"))
    assert "no credentials were found" not in refusal({"key": "k"})
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    assert "no credentials were found" not in refusal({})


class AlreadyExistsError(Exception):
    """Named as obstore's."""


IN_PROGRESS = AlreadyExistsError(
    "Server returned non-2xx status code: 409 Conflict: "
    "<Error><Code>ConditionalRequestConflict</Code><Message>no</Message></Error>"
)


def test_a_conflict_that_is_under_way_is_tried_again_and_then_looked_at() -> None:
    bucket, pauses = over(Scripted(IN_PROGRESS))
    bucket.put("new", b"1", create_only=True)
    assert bucket.get("new") == b"1" and len(pauses) == 1
    client = Scripted(IN_PROGRESS)
    bucket, _ = over(client)
    client.objects["new"] = b"of another"
    with pytest.raises(PutConflictError):
        bucket.put("new", b"1", create_only=True)
    bucket, _ = over(Scripted(*[IN_PROGRESS] * 9))
    with pytest.raises(StoreUnreachableError, match="another request for that object"):
        bucket.put("new", b"1", create_only=True)


class PanicException(BaseException):
    """As what is written in Rust raises where it is broken."""


def test_a_panic_of_a_library_is_an_error_of_the_request() -> None:
    class Panicking(MemoryBucket):
        def get(self, *asked: object) -> bytes:
            raise PanicException("index out of bounds")

        def put_stream(self, *asked: object) -> str:
            raise PanicException("index out of bounds")

    bucket, _ = over(Panicking())
    with pytest.raises(OSError, match=r"cannot read x.*index out of bounds"):
        bucket.get("x")
    with pytest.raises(OSError, match=r"cannot put x.*index out of bounds"):
        bucket.put_stream("x", [b"1"])


def test_who_ends_a_request_by_hand_ends_it() -> None:
    class Ended(MemoryBucket):
        def get(self, *asked: object) -> bytes:
            raise KeyboardInterrupt

    bucket, pauses = over(Ended())
    with pytest.raises(KeyboardInterrupt):
        bucket.get("x")
    assert pauses == []


@pytest.mark.parametrize(
    ("try_s", "has_answered", "tries_count"),
    [(10.0, False, 3), (10.0, True, 10), (300.0, False, 2), (0.1, False, 10)],
)
def test_where_packets_are_dropped_who_never_had_an_answer_is_told_within_a_minute(
    try_s: float, has_answered: bool, tries_count: int
) -> None:
    now_s = 0.0

    class Dropping(Scripted):
        def _fail(self) -> None:
            nonlocal now_s
            now_s += try_s
            super()._fail()

    def sleep(pause_s: float) -> None:
        nonlocal now_s
        now_s += pause_s

    client = Dropping(*[TimeoutError("timed out")] * 20)
    bucket = RetryBucket(lambda: client, "s3://b/x", Retry(sleep=sleep, clock=lambda: now_s))
    if has_answered:
        bucket.info("x")
    with pytest.raises(StoreUnreachableError):
        bucket.get("x")
    assert client.tries_count == tries_count
    assert now_s < 60 or has_answered or try_s > 60


@pytest.mark.parametrize("taken_count", [1, 2])
def test_an_upload_that_ended_half_way_is_never_taken_for_whole(taken_count: int) -> None:
    """Where another writer's object is what was sent until then."""

    class Ended(Scripted):
        def put_stream(self, key: str, chunks: Iterable[bytes | memoryview], *size: object) -> str:
            asked = iter(chunks)
            self.objects[key] = b"".join(bytes(next(asked)) for _ in range(taken_count))
            if taken_count == 2:
                assert next(asked, None) is None
            raise FileNotFoundError("NoSuchUpload")

    bucket, _ = over(Ended())
    if taken_count == 2:
        assert bucket.put_stream("y", [b"1", b"2"])
        return
    with pytest.raises(StoreUnreachableError, match="send it again"):
        bucket.put_stream("y", [b"1", b"2"])
