"""A bucket through `obstore`: S3, Google, Azure, with conditional puts and ranged reads."""

from __future__ import annotations

import builtins
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tune_sync.buckets.answers import NoStoreError
from tune_sync.buckets.bucket import (
    Capabilities,
    ObjectInfo,
    check_object_key,
    part_size_bytes,
)
from tune_sync.buckets.failures import is_no_store
from tune_sync.buckets.pieces import kept
from tune_sync.errors import PutConflictError
from tune_sync.layout import INTERNAL_DIR

# Bytes that one upload has under way at most; its parts share them. One connection takes some
# 100 MB/s, so ten parts at once bring 1 GB/s.
IN_FLIGHT_BYTES = 160 << 20
# Looks at empty objects, side by side.
LOOKS_COUNT = 16
# Of one part, at random times: not these but PART_RETRY_S shall end them.
STREAM_RETRIES_COUNT = 40
# So many S3 takes in one request.
DELETES_COUNT = 1000
# What an upload in parts has as its metadata, to be known again. Letters only: Azure takes no
# dashes, and some proxies no underscores.
MARK = "tunesync"


class ObstoreBucket:
    """See `bucket.Bucket`.

    Args:
        make: Makes the store of `obstore`, rooted; given is how often it may try one request again.
        by_version: Its conditions are on versions, as Google's are, and not on e-tags.
    """

    def __init__(self, make: Callable[[int], Any], *, by_version: bool = False) -> None:
        import obstore

        self._obstore: Any = obstore
        self._make = make
        self._by_version = by_version
        self.rebuild()

    def rebuild(self) -> None:
        """A new client, with the credentials of now."""
        self._store = self._make(0)
        self._streams = self._make(STREAM_RETRIES_COUNT)

    def check(self, *, tidies: bool = False) -> None:
        """See `Client.check`. A listing: for a single object no library says what is missing."""
        self.list_dir(INTERNAL_DIR)

    @property
    def capabilities(self) -> Capabilities:
        """See `Bucket.capabilities`."""
        return Capabilities(conditional_put=True, etags=True, marks_streams=True)

    def info(self, key: str) -> ObjectInfo | None:
        """See `Bucket.info`."""
        try:
            return _as_info(self._obstore.head(self._store, check_object_key(key)))
        except FileNotFoundError:
            return None

    def list(self, prefix: str) -> list[ObjectInfo]:
        """See `Bucket.list`."""
        batches = self._obstore.list(self._store, prefix=check_object_key(prefix) or None)
        return self._objects(entry for batch in batches for entry in batch)

    def list_dir(self, prefix: str) -> tuple[builtins.list[ObjectInfo], builtins.list[str]]:
        """See `Bucket.list_dir`."""
        found = self._obstore.list_with_delimiter(self._store, check_object_key(prefix) or None)
        directories = sorted(str(key) for key in found["common_prefixes"])
        return self._objects(found["objects"]), directories

    def get(self, key: str, offset_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        """See `Bucket.get`."""
        check_object_key(key)
        if not offset_bytes and length_bytes is None:
            return _bytes_of(self._obstore.get(self._store, key))
        if length_bytes is not None and length_bytes <= 0:
            return b""
        wanted = (
            {"offset": offset_bytes}
            if length_bytes is None
            else (offset_bytes, offset_bytes + length_bytes)
        )
        try:
            return _bytes_of(self._obstore.get(self._store, key, options={"range": wanted}))
        except Exception:
            # A range that begins at the end is an error there; nobody else is asked for the size.
            # Of one that is not there, that request alone says whether it is the bucket.
            found = self.info(key)
            if found is None or not found.etag or found.size_bytes > offset_bytes:
                raise
            return b""

    def put(
        self, key: str, data: bytes | memoryview, *, create_only: bool = False, if_match: str = ""
    ) -> str:
        """See `Bucket.put`."""
        mode: Any = "create" if create_only else "overwrite"
        if if_match:
            mode = self._only_over(check_object_key(key), if_match)
        stored = self._obstore.put(
            self._store, check_object_key(key), kept(data), mode=mode, use_multipart=False
        )
        return str(stored["e_tag"] or "")

    def put_stream(
        self, key: str, chunks: Iterable[bytes | memoryview], size_bytes: int | None = None
    ) -> str:
        """See `Bucket.put_stream`."""
        part_bytes = part_size_bytes(size_bytes)
        mark = uuid.uuid4().hex
        try:
            stored = self._obstore.put(
                self._streams, check_object_key(key), map(kept, chunks), use_multipart=True,
                chunk_size=part_bytes, max_concurrency=max(1, IN_FLIGHT_BYTES // part_bytes),
                attributes={MARK: mark},
            )  # fmt: skip
        except FileNotFoundError:
            # Of an upload that has ended: by an earlier try, whose answer was lost?
            etag = self._etag_of(key, mark)
            if etag is None:
                raise
            return etag
        return str(stored["e_tag"] or "")

    def delete(self, keys: Sequence[str]) -> None:
        """See `Bucket.delete`."""
        names = [check_object_key(key) for key in keys]
        for start in range(0, len(names), DELETES_COUNT):
            some = names[start : start + DELETES_COUNT]
            try:
                self._obstore.delete(self._store, some)
            except FileNotFoundError:  # from stores that delete one by one; the rest is still there
                self._delete_each(some)

    def _etag_of(self, key: str, mark: str) -> str | None:
        """The e-tag of an object that came of this upload; None if that is not what is there."""
        try:
            found = self._obstore.get(self._streams, key, options={"head": True})
        except FileNotFoundError:
            return None
        is_ours = dict(found.attributes).get(MARK) == mark
        return str(found.meta["e_tag"] or "") if is_ours else None

    def _only_over(self, key: str, etag: str) -> dict[str, str]:
        """The condition that an object still has this e-tag."""
        if not self._by_version:
            return {"e_tag": etag}
        try:
            found = self._obstore.head(self._store, key)
        except FileNotFoundError:
            found = {"e_tag": ""}
        if found["e_tag"] != etag:
            raise PutConflictError(f"{key} is not what it was: another writer was first")
        return {"version": found["version"]}

    def _objects(self, entries: Iterable[Any]) -> builtins.list[ObjectInfo]:
        """Without the empty objects that other tools put in place of directories, as `dir/`.

        obstore lists these as `dir`. Only a look at the name itself tells them from a file.
        """
        found = {entry["path"]: _as_info(entry) for entry in entries}
        empty = [key for key, info in found.items() if not info.size_bytes]
        if empty:
            with ThreadPoolExecutor(LOOKS_COUNT) as pool:
                for key, there in zip(empty, pool.map(self.info, empty), strict=True):
                    if there is None:
                        del found[key]
        return [info for _, info in sorted(found.items())]

    def _delete_each(self, keys: Sequence[str]) -> None:
        for key in keys:
            try:
                self._obstore.delete(self._store, key)
            except FileNotFoundError as error:
                if is_no_store(error):
                    raise
                if self.info(key) is not None:
                    raise NoStoreError("no store's answer: the object is there") from error


def _bytes_of(found: Any) -> bytes:
    if not found.meta["e_tag"]:
        raise NoStoreError("no store's answer: it has no e-tag")
    return bytes(found.bytes())


def _as_info(entry: Any) -> ObjectInfo:
    return ObjectInfo(
        entry["path"], entry["size"], entry["last_modified"].timestamp(), entry["e_tag"] or ""
    )
