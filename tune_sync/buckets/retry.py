"""`RetryBucket`: the only retries of buckets, their errors, and one client a process."""

from __future__ import annotations

import builtins
import logging
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeVar

import xxhash

from tune_sync.buckets.answers import CheckedClient, Client, is_of_a_store
from tune_sync.buckets.bucket import Capabilities, ObjectInfo
from tune_sync.buckets.failures import (
    NO_OBJECT,
    NO_PLACE,
    as_exception,
    as_store_error,
    is_denied,
    is_ended_upload,
    is_throttled,
    is_transient,
)
from tune_sync.errors import PutConflictError, StoreDeniedError, StoreUnreachableError

T = TypeVar("T")

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

OF_THIS_NODE = (
    "the driver has reached it, and this node never had an answer: give workers the endpoint and "
    'the credentials that the driver has, with ray.init(runtime_env={"env_vars": {...}}) or '
    "SyncConfig(storage_options=...)"
)

# Ten tries over 25 to 50 seconds: an outage of 20 seconds is seen through, and a store that is gone
# is told within a minute, if its host says so at once.
DEFAULT_TRIES_COUNT = 10
FIRST_PAUSE_S = 0.3
LONGEST_PAUSE_S = 10.0
UNCLEAR = "the store knows nothing of this upload any more: send it again"
# Of an object that is compared with what was sent.
LOOK_BYTES = 16 << 20
# Who never had an answer begins no third or later try after so long in tries: most often its
# endpoint is wrong. Who had one goes through all tries.
UNHEARD_S = 30.0
# A stream cannot be done again, so it starts with credentials that are no older than this. Those
# who renew them do so minutes before the old ones end.
STREAM_CREDENTIALS_S = 60.0


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how long.

    Attributes:
        tries_count: At most so many tries of one request.
        sleep: Waits for seconds.
        dice: From 0 to 1, for the jitter.
        clock: Seconds that only grow.
        stream_credentials_s: How old the credentials may be that a stream starts with.
        patience_s: A store that has answered, if only by asking for fewer requests, is there: one
            request of it is tried so long, also more often than `tries_count`.
    """

    tries_count: int = DEFAULT_TRIES_COUNT
    sleep: Callable[[float], None] = time.sleep
    dice: Callable[[], float] = random.random
    clock: Callable[[], float] = time.monotonic
    stream_credentials_s: float = STREAM_CREDENTIALS_S
    patience_s: float = 0.0

    def pause_s(self, tried_count: int) -> float:
        """Seconds to wait after so many tries: they double, and half of each is random."""
        longest = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (tried_count - 1))
        return longest * (0.5 + 0.5 * self.dice())


class RetryBucket:
    """See `bucket.Bucket`. Tries again what may work in a moment; maps errors.

    A client is made when it is first used, and again in a process that was forked.

    Args:
        make: Makes the client.
        where: The bucket's URL, for messages.
        retry: How often.
        here: The node that asks, for messages, if its driver has asked before; else "".
        missing: What to say of credentials that are not there, if it refuses; else "".
        asked: Which server is asked, for messages; else "".
    """

    def __init__(
        self, make: Callable[[], Client], where: str, retry: Retry | None = None,
        here: str = "", missing: Callable[[], str] = lambda: "",
        asked: Callable[[], str] = lambda: "",
    ) -> None:  # fmt: skip
        self._make = make
        self._where = where
        self._retry = retry or Retry()
        self._here_name, self._missing, self._asked = here, missing, asked
        self._has_answered = self._has_warned = False
        self._is_known = False  # what has answered is a store
        # By process id. A client of the process that this one was forked from is kept, not used:
        # its threads are not here, and its end would wait for them.
        self._clients: dict[int, CheckedClient] = {}
        self._built_s = self._retry.clock()

    @property
    def where(self) -> str:
        """The bucket's URL."""
        return self._where

    @property
    def capabilities(self) -> Capabilities:
        """See `Bucket.capabilities`."""
        return self._here().capabilities

    def info(self, key: str) -> ObjectInfo | None:
        """See `Bucket.info`."""
        return self._do(f"look at {key}", lambda c: c.info(key))

    def list(self, prefix: str) -> list[ObjectInfo]:
        """See `Bucket.list`."""
        return self._do(f"list {prefix}", lambda c: c.list(prefix))

    def list_dir(self, prefix: str) -> tuple[builtins.list[ObjectInfo], builtins.list[str]]:
        """See `Bucket.list_dir`."""
        return self._do(f"list {prefix}", lambda c: c.list_dir(prefix))

    def get(self, key: str, offset_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        """See `Bucket.get`."""
        return self._do(f"read {key}", lambda c: c.get(key, offset_bytes, length_bytes))

    def put(
        self, key: str, data: bytes | memoryview, *, create_only: bool = False, if_match: str = ""
    ) -> str:
        """See `Bucket.put`. A conflict with an earlier try of this very call is none."""
        tries_count = 0

        def act(client: Client) -> str:
            nonlocal tries_count
            tries_count += 1
            try:
                return client.put(key, data, create_only=create_only, if_match=if_match)
            except Exception as error:
                mapped = as_store_error(error, f"put {key}")
                if not isinstance(mapped, PutConflictError) or tries_count == 1:
                    raise
                found = client.info(key)
                if found is None or client.get(key) != bytes(data):
                    raise
                return found.etag

        return self._do(f"put {key}", act, NO_PLACE)

    def put_stream(
        self, key: str, chunks: Iterable[bytes | memoryview], size_bytes: int | None = None
    ) -> str:
        """See `Bucket.put_stream`. Once bytes were asked for, only the client tries parts again."""
        source = _Source(chunks, remembers=not self.capabilities.marks_streams)
        before = self._do(f"put {key}", lambda c: c.before(key), NO_PLACE)
        rebuilt, tried_count = False, 0
        if self._retry.clock() - self._built_s > self._retry.stream_credentials_s:
            self._rebuild()
        first_s = self._retry.clock()
        while True:
            try:
                etag = self._here().put_stream(key, source, size_bytes)
                self._has_answered = True
                self._is_known |= is_of_a_store(etag)
                break
            except BaseException as raised:
                error = as_exception(raised)
                if source.error is not None:
                    raise source.error from None
                found = self._etag_of(key, source) if is_ended_upload(error) else None
                if found is not None:
                    return found
                tried_count += 1
                again = is_denied(error) and not rebuilt
                if is_denied(error):  # this or the next stream shall have the credentials of now
                    rebuilt = True
                    self._rebuild()
                pauses = not again and self._may_begin_again(error, tried_count, first_s)
                if source.is_asked or not (again or pauses):
                    self._fail(error, f"put {key}", NO_PLACE)
                if pauses:
                    self._retry.sleep(self._retry.pause_s(tried_count))
        # A look of its own: it can be tried again, and the stream cannot.
        size = source.taken_bytes
        self._do(f"put {key}", lambda c: c.look_for(key, etag, size, before), NO_PLACE)
        return etag

    def delete(self, keys: Sequence[str]) -> None:
        """See `Bucket.delete`."""
        if keys:
            self._do(f"delete {keys[0]}", lambda c: c.delete(keys))

    def check(self, *, tidies: bool = False) -> None:
        """Look whether the bucket is there and can be listed. `tidies`: see `Client.check`.

        Raises:
            ConfigError: No such bucket, another region, a missing library.
            StoreDeniedError: No permission, or no valid credentials.
            StoreUnreachableError: It does not answer.
        """
        self._do("open the bucket", lambda c: c.check(tidies=tidies))

    def _etag_of(self, key: str, source: _Source) -> str | None:
        """The e-tag of an object that holds what `source` gave; None if that is not there."""
        if source.digest is None or not source.is_at_end:
            return None
        found = self.info(key)
        if found is None or found.size_bytes != source.taken_bytes:
            return None
        digest = xxhash.xxh3_128()
        for start in range(0, found.size_bytes, LOOK_BYTES):
            digest.update(self.get(key, start, LOOK_BYTES))
        return found.etag if digest.digest() == source.digest.digest() else None

    def _here(self) -> CheckedClient:
        pid = os.getpid()
        client = self._clients.get(pid)
        if client is None:
            # Without a lock: one that a fork copied while it was held would never be free again.
            # Of two made at once, one is used.
            client = self._clients.setdefault(pid, self._made())
        return client

    def _made(self) -> CheckedClient:
        try:
            return CheckedClient(self._make())
        except Exception as error:
            self._fail(error, "open the bucket")

    def _do(self, doing: str, act: Callable[[CheckedClient], T], absent: str = NO_OBJECT) -> T:
        rebuilt = False
        tried_count, tried_s, first_s = 0, 0.0, self._retry.clock()
        while True:
            began_s = self._retry.clock()
            try:
                found = act(self._here())
                self._has_answered = True
                self._is_known |= is_of_a_store(found)
                return found
            except BaseException as raised:
                error = as_exception(raised)
                tried_count += 1
                tried_s += self._retry.clock() - began_s
                self._warn(error)
                in_vain = not self._has_answered and tried_count > 1 and tried_s >= UNHEARD_S
                is_last = tried_count >= self._retry.tries_count or in_vain
                again = is_transient(error, is_known=self._is_known) and (
                    not is_last or self._is_patient(error, first_s)
                )
                if is_denied(error) and not rebuilt:  # credentials may have been renewed
                    rebuilt = True
                    self._rebuild()
                elif again:
                    self._retry.sleep(self._retry.pause_s(tried_count))
                else:
                    self._fail(error, doing, absent)

    def _may_begin_again(self, error: Exception, tried_count: int, first_s: float) -> bool:
        """Whether a stream that took nothing has another try: not where the client tried long."""
        is_late = self._retry.clock() - first_s >= UNHEARD_S
        is_last = tried_count >= self._retry.tries_count or is_late
        return is_transient(error, is_known=self._is_known) and not is_last

    def _is_patient(self, error: Exception, began_s: float) -> bool:
        is_there = self._has_answered or is_throttled(error)
        return is_there and self._retry.clock() - began_s < self._retry.patience_s

    def _rebuild(self) -> None:
        self._built_s = self._retry.clock()
        try:
            self._here().rebuild()
        except Exception as error:
            self._fail(error, "open the bucket")

    def _warn(self, error: Exception) -> None:
        """Tell at once of what is tried again for a minute, where it may be a node's settings."""
        if self._here_name and not (self._has_answered or self._has_warned) and is_transient(error):
            self._has_warned = True
            logger.warning(
                "%s does not answer %s yet, and is tried again; the driver has reached it",
                self._where, self._here_name,
            )  # fmt: skip

    def _fail(self, error: Exception, doing: str, absent: str = NO_OBJECT) -> NoReturn:
        asker = f" from {self._here_name}" if self._here_name else ""
        what = f"{self._where}: cannot {doing}{asker}"
        mapped = as_store_error(error, what, self._asked(), absent, is_known=self._is_known)
        if isinstance(mapped, FileNotFoundError) and doing.startswith("put "):
            # It would be taken for a source that is gone. And no store means that by it.
            mapped = StoreUnreachableError(f"{mapped}; {UNCLEAR}")
        if mapped is error:  # "from" would make it its own cause: an endless chain
            raise error
        if isinstance(mapped, (StoreDeniedError, StoreUnreachableError)):
            more = self._missing() if is_denied(error) else ""
            unheard = OF_THIS_NODE if asker and not self._has_answered else ""
            mapped = type(mapped)("; ".join(filter(None, [str(mapped), more, unheard])))
        raise mapped from error


class _Source:
    """Chunks to put, and what their origin raised: that is no error of the store.

    Args:
        chunks: The chunks.
        remembers: Have a digest of them.
    """

    def __init__(self, chunks: Iterable[bytes | memoryview], *, remembers: bool) -> None:
        self._chunks = chunks
        self.digest = xxhash.xxh3_128() if remembers else None
        self.taken_bytes = 0
        self.error: Exception | None = None
        self.is_asked = self.is_at_end = False

    def __iter__(self) -> Iterator[bytes | memoryview]:
        self.is_asked = True
        try:
            for chunk in self._chunks:
                self.taken_bytes += len(chunk)
                if self.digest is not None:
                    self.digest.update(chunk)
                yield chunk
            self.is_at_end = True
        except Exception as error:
            self.error = error
            raise
