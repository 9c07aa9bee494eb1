"""What an answer of a store looks like: the one place that tells it from another server's.

What is on the way to a store, as a proxy, a page to sign in, or an ingress without a store behind
it, may answer in its place as if all were well. Each library takes some of that for the store's
word: a page for an object, or for a listing of nothing, and a put or a delete for done.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Sequence
from typing import Protocol

from tune_sync.buckets.bucket import Bucket, Capabilities, ObjectInfo
from tune_sync.errors import StoreUnreachableError
from tune_sync.layout import FORMAT_KEY, INTERNAL_DIR, below

# How a page begins. What we keep for ourselves is JSON.
_PAGES = (b"<html", b"<!doctype html")
_LOOKED_AT_BYTES = 256
_NOT_THERE = "no store's answer: what was put is not there"


class NoStoreError(OSError):
    """What answered is no store. `failures` says what is to be done about it."""


class Client(Bucket, Protocol):
    """A bucket of one library, with a client in it."""

    def rebuild(self) -> None:
        """Make the client anew, with the credentials of now."""

    def check(self, *, tidies: bool = False) -> None:
        """Raise unless the bucket is there and can be listed.

        `tidies`: remove old objects, too, that writers who were killed left aside.
        """


def is_of_a_store(found: object) -> bool:
    """Whether a request that has worked shows that a store answered: most of "nothing" may not."""
    return found not in (None, "", b"", [], ([], []))


class CheckedClient:
    """See `Client`. Raises `NoStoreError` for what no store answers.

    Where the library tells e-tags, an answer without one is none. Where it tells times alone, one
    without a time is none, and what was put or deleted is looked at: no e-tag says that it was.

    Args:
        client: The library's.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def capabilities(self) -> Capabilities:
        """See `Bucket.capabilities`."""
        return self._client.capabilities

    def rebuild(self) -> None:
        """See `Client.rebuild`."""
        self._client.rebuild()

    def check(self, *, tidies: bool = False) -> None:
        """See `Client.check`."""
        self._client.check(tidies=tidies)

    def info(self, key: str) -> ObjectInfo | None:
        """See `Bucket.info`."""
        found, can = self._client.info(key), self.capabilities
        if found is None or found.etag or not (can.etags or can.times):
            return found
        if can.etags or not found.modified_s:
            raise NoStoreError("no store's answer: it has neither an e-tag nor a time")
        return found

    def list(self, prefix: str) -> list[ObjectInfo]:
        """See `Bucket.list`."""
        found = self._client.list(prefix)
        if not found:
            self._ask()
        return found

    def list_dir(self, prefix: str) -> tuple[builtins.list[ObjectInfo], builtins.list[str]]:
        """See `Bucket.list_dir`."""
        objects, directories = self._client.list_dir(prefix)
        if not objects and not directories:
            self._ask()
        return objects, directories

    def get(self, key: str, offset_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        """See `Bucket.get`."""
        data = self._client.get(key, offset_bytes, length_bytes)
        is_page = not offset_bytes and _is_page(data)
        if is_page and below(INTERNAL_DIR, key) is not None:
            raise NoStoreError("no store's answer: it is a page")
        if self.capabilities.times and (is_page or not data) and length_bytes != 0:
            found = self.info(key)  # it may be a file of the user's
            end = offset_bytes + len(data)
            is_all = found is None or max(found.size_bytes, offset_bytes) == end
            if not is_all and length_bytes is None:
                raise NoStoreError("no store's answer: it has another length")
        return data

    def put(
        self, key: str, data: bytes | memoryview, *, create_only: bool = False, if_match: str = ""
    ) -> str:
        """See `Bucket.put`."""
        etag = self._client.put(key, data, create_only=create_only, if_match=if_match)
        if not etag and self.capabilities.times:
            found = self.info(key)
            if found is None or found.size_bytes != len(data):
                raise NoStoreError(_NOT_THERE)  # with another writer's there it is put again
        return etag

    def put_stream(
        self, key: str, chunks: Iterable[bytes | memoryview], size_bytes: int | None = None
    ) -> str:
        """See `Bucket.put_stream`. Call `before` before it, and `look_for` then."""
        return self._client.put_stream(key, chunks, size_bytes)

    def delete(self, keys: Sequence[str]) -> None:
        """See `Bucket.delete`. Of many, one is looked at."""
        self._client.delete(keys)
        if self.capabilities.times and keys and self.info(keys[-1]) is not None:
            raise StoreUnreachableError(f"{keys[-1]!r} is there after its delete")

    def before(self, key: str) -> ObjectInfo | None:
        """What a put to `key` replaces, for `look_for`; None, too, where that is not looked at."""
        return self.info(key) if self.capabilities.times else None

    def look_for(
        self, key: str, etag: str, size_bytes: int, before: ObjectInfo | None = None
    ) -> None:
        """Look for what was put, if nothing else tells that it was. Raises `NoStoreError`.

        What came to `key` since `before` is another writer's if it has another size: there is one
        who answers, then.
        """
        if etag or not self.capabilities.times:
            return
        found = self.info(key)
        if found is None or (found.size_bytes != size_bytes and found == before):
            raise NoStoreError(_NOT_THERE)

    def _ask(self) -> None:
        """A page may be a listing of nothing, and is no object: so ask for one, there or not."""
        self.info(FORMAT_KEY)


def _is_page(data: bytes) -> bool:
    return bytes(data[:_LOOKED_AT_BYTES]).lstrip().lower().startswith(_PAGES)
