"""What every `tune_sync.buckets.bucket.Bucket` has to do, as tests that a test class inherits.

```python
class TestMyBucket(BucketContract):
    def make_bucket(self, tmp_path):
        return MyBucket(tmp_path)
```
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tune_sync.buckets.bucket import Bucket
from tune_sync.errors import PathRefusedError, PutConflictError
from tune_sync.new_pages import new_pages

ODD_NAMES = (
    "a b", "a%20b", "a+b", "a#b", "a?b", "a'b", 'a"b', "a:b", "a*b", "a&b", "a;b", "~x", "{y}",
    "${HOME}", ".hidden", "trailing ", " leading", "ä/漢字", "e\u0301", "\u00e9", "-rf", "..a",
    "a..", "...", "[x]", "a=b", "a,b", "x" * 200,
)  # fmt: skip
REFUSED = ("../x", "a/../x", "/x", "a//b", "./a", "a/", "new\nline", "tab\t", "back\\slash")
LARGE_BYTES = 12 << 20  # more than one part for those with the smallest parts


class BucketContract:
    """Inherit, and say in `make_bucket` how to make one. Every test gets a fresh `tmp_path`.

    Attributes:
        odd_names: Names that the bucket keeps as they are.
    """

    odd_names: tuple[str, ...] = ODD_NAMES

    def make_bucket(self, tmp_path: Path) -> Bucket:
        """An empty bucket. May be called several times for one `tmp_path`: the same place."""
        raise NotImplementedError

    def test_bytes_put_are_the_bytes_got(self, tmp_path: Path) -> None:
        bucket, other = self.make_bucket(tmp_path), self.make_bucket(tmp_path)
        bucket.put("a/b", b"0123456789")
        assert other.get("a/b") == b"0123456789"
        assert other.get("a/b", 3) == b"3456789"
        assert other.get("a/b", 3, 4) == b"3456"
        assert other.get("a/b", 8, 100) == b"89"
        assert other.get("a/b", 100, 1) == b""
        assert other.get("a/b", 0, 0) == b""

    def test_a_view_is_stored_and_its_memory_may_be_used_again(self, tmp_path: Path) -> None:
        """Of `bytes`, of mapped pages, and of memory that is filled again."""
        bucket = self.make_bucket(tmp_path)
        pages, again = new_pages(4096), bytearray(b"a" * 3000)
        pages[:3000] = b"p" * 3000
        for name, view in (
            ("bytes", memoryview(b"b" * 4000)[:3000]),
            ("pages", memoryview(pages)[:3000]),
            ("again", memoryview(again)),
        ):
            bucket.put(f"dir/{name}", view)
            bucket.put_stream(f"stream/{name}", [view[:1000], view[1000:]], 3000)
        again[:] = b"x" * 3000
        for name in ("bytes", "pages", "again"):
            assert bucket.get(f"dir/{name}") == name[:1].encode() * 3000
            assert bucket.get(f"stream/{name}") == name[:1].encode() * 3000

    def test_an_empty_object_is_an_object(self, tmp_path: Path) -> None:
        bucket = self.make_bucket(tmp_path)
        bucket.put("d/empty", b"")
        found = bucket.info("d/empty")
        assert found is not None and found.size_bytes == 0
        assert bucket.get("d/empty") == b""
        assert [o.key for o in bucket.list("d")] == ["d/empty"]

    def test_info_tells_objects_and_absence(self, tmp_path: Path) -> None:
        bucket = self.make_bucket(tmp_path)
        bucket.put("d/x", b"abc")
        found = bucket.info("d/x")
        assert found is not None and (found.key, found.size_bytes) == ("d/x", 3)
        assert bucket.info("d") is None
        assert bucket.info("d/y") is None
        assert bucket.info("d/x/below") is None

    def test_what_is_missing_cannot_be_got(self, tmp_path: Path) -> None:
        bucket = self.make_bucket(tmp_path)
        bucket.put("d/x", b"abc")
        _raises(FileNotFoundError, lambda: bucket.get("d/y"))
        _raises(FileNotFoundError, lambda: bucket.get("d"))

    def test_a_later_put_replaces(self, tmp_path: Path) -> None:
        bucket = self.make_bucket(tmp_path)
        first = bucket.put("x", b"one")
        second = bucket.put("x", b"three")
        assert bucket.get("x") == b"three"
        if bucket.capabilities.etags:
            found = bucket.info("x")
            assert first and first != second and found is not None and found.etag == second

    def test_create_only_is_refused_where_something_is(self, tmp_path: Path) -> None:
        bucket = self.make_bucket(tmp_path)
        bucket.put("x", b"one", create_only=True)
        _raises(PutConflictError, lambda: bucket.put("x", b"two", create_only=True))
        assert bucket.get("x") == b"one"

    def test_if_match_is_refused_where_something_else_is(self, tmp_path: Path) -> None:
        bucket = self.make_bucket(tmp_path)
        if not bucket.capabilities.conditional_put:
            return
        first = bucket.put("x", b"one")
        bucket.put("x", b"two", if_match=first)
        _raises(PutConflictError, lambda: bucket.put("x", b"three", if_match=first))
        _raises(PutConflictError, lambda: bucket.put("absent", b"three", if_match=first))
        assert bucket.get("x") == b"two"

    def test_of_many_creators_one_wins(self, tmp_path: Path) -> None:
        bucket = self.make_bucket(tmp_path)
        if not bucket.capabilities.conditional_put:
            return

        def create(number: int) -> bool:
            try:
                bucket.put("x", str(number).encode(), create_only=True)
            except PutConflictError:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(create, range(24))) == 1

    def test_list_has_all_below_and_nothing_beside(self, tmp_path: Path) -> None:
        bucket = self.make_bucket(tmp_path)
        for key in ("d/b", "d/a", "d/sub/deep", "d2/x", "dd", "e"):
            bucket.put(key, b"12")
        assert [o.key for o in bucket.list("d")] == ["d/a", "d/b", "d/sub/deep"]
        assert {o.size_bytes for o in bucket.list("d")} == {2}
        assert len(bucket.list("")) == 6
        assert bucket.list("none") == []
        objects, directories = bucket.list_dir("d")
        assert [o.key for o in objects] == ["d/a", "d/b"] and directories == ["d/sub"]
        objects, directories = bucket.list_dir("")
        assert [o.key for o in objects] == ["dd", "e"] and directories == ["d", "d2"]
        assert bucket.list_dir("none") == ([], [])

    def test_a_listing_is_never_old(self, tmp_path: Path) -> None:
        one, two = self.make_bucket(tmp_path), self.make_bucket(tmp_path)
        one.put("d/5", b"x")
        assert [o.key for o in two.list("d")] == ["d/5"]
        one.put("d/7", b"x")
        one.delete(["d/5"])
        # Asked first: each listing is a newer one, which a library may go by.
        assert two.info("d/5") is None and two.info("d/7") is not None
        assert [o.key for o in two.list("d")] == ["d/7"]
        assert [o.key for o in two.list_dir("d")[0]] == ["d/7"]

    def test_odd_names_stay_as_they_are_and_distinct(self, tmp_path: Path) -> None:
        bucket = self.make_bucket(tmp_path)
        for number, name in enumerate(self.odd_names):
            bucket.put(f"dir {name}/{name}", str(number).encode())
        for number, name in enumerate(self.odd_names):
            assert bucket.get(f"dir {name}/{name}") == str(number).encode(), name
            keys = [o.key for o in bucket.list(f"dir {name}")]
            assert f"dir {name}/{name}" in keys, name
        bucket.delete([f"dir {name}/{name}" for name in self.odd_names])
        assert bucket.list("") == []

    def test_keys_that_no_store_can_keep_are_refused(self, tmp_path: Path) -> None:
        bucket = self.make_bucket(tmp_path)
        for bad in REFUSED:
            for call in _calls(bucket, bad):
                _raises(PathRefusedError, call)

    def test_a_stream_of_any_size_arrives(self, tmp_path: Path) -> None:
        bucket = self.make_bucket(tmp_path)
        for size_bytes in (0, 1, LARGE_BYTES):
            data = bytes(range(256)) * (size_bytes // 256 + 1)
            starts = range(0, size_bytes, 5 << 20)
            chunks = [data[i : min(i + (5 << 20), size_bytes)] for i in starts]
            bucket.put_stream(f"s/{size_bytes}", chunks, size_bytes)
            assert bucket.get(f"s/{size_bytes}") == data[:size_bytes]
            found = bucket.info(f"s/{size_bytes}")
            assert found is not None and found.size_bytes == size_bytes

    def test_a_stream_that_fails_leaves_nothing(self, tmp_path: Path) -> None:
        bucket = self.make_bucket(tmp_path)

        def chunks() -> Iterator[bytes]:
            yield b"x" * LARGE_BYTES
            raise _StopError("the source is gone")

        _raises(_StopError, lambda: bucket.put_stream("s", chunks()))
        assert bucket.info("s") is None

    def test_delete_may_come_twice(self, tmp_path: Path) -> None:
        bucket = self.make_bucket(tmp_path)
        bucket.put("d/x", b"1")
        bucket.put("d/y", b"1")
        bucket.delete(["d/x", "d/none"])
        bucket.delete(["d/x"])
        bucket.delete([])
        assert [o.key for o in bucket.list("")] == ["d/y"]

    def test_many_are_deleted(self, tmp_path: Path) -> None:
        bucket = self.make_bucket(tmp_path)
        keys = [f"m/{number}" for number in range(120)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: bucket.put(key, b"x"), keys))
        bucket.delete(keys)
        assert bucket.list("") == []


class _StopError(Exception):
    pass


def _calls(bucket: Bucket, key: str) -> list[Callable[[], object]]:
    return [
        lambda: bucket.info(key),
        lambda: bucket.list(key),
        lambda: bucket.get(key),
        lambda: bucket.put(key, b"x"),
        lambda: bucket.put_stream(key, [b"x"]),
        lambda: bucket.delete([key]),
    ]


def _raises(kind: type[Exception], call: Callable[[], object]) -> None:
    try:
        call()
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")
