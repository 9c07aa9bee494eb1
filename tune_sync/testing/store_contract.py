"""What every `tune_sync.homes.store.Store` has to do, as tests that a test class inherits.

```python
class TestMyStore(StoreContract):
    def make_store(self, tmp_path):
        return MyStore(tmp_path)
```
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tune_sync.errors import PathRefusedError
from tune_sync.homes.store import Store

ODD_NAMES = (
    "a b", "a%20b", "a+b", "a#b", "a?b", "a'b", 'a"b', "a\\b", "a:b", "a*b", "a&b", "a;b", "~x",
    "{y}", "${HOME}", ".hidden", "trailing ", " leading", "new\nline", "tab\t", "ä/漢字", "e\u0301",
    "\u00e9", "-rf", "..a", "a..", "..." , "x" * 200,
)  # fmt: skip
ESCAPES = (
    "../x",
    "a/../../x",
    "/etc/x",
    "a//b",
    "./a",
    "a/.",
    "..",
    ".",
    "a/",
    "nul\0",
    "d/" * 40 + "f",
)


class StoreContract:
    """Inherit, and say in `make_store` how to make one. Every test gets a fresh `tmp_path`."""

    def make_store(self, tmp_path: Path) -> Store:
        """An empty store. May be called several times for one `tmp_path`: the same place."""
        raise NotImplementedError

    def outside(self, tmp_path: Path) -> Path | None:
        """The directory in which the bytes can be seen without the store, or None."""
        return None

    def put(self, tmp_path: Path, key: str, data: bytes) -> None:
        """Write a file without the store, where there is a way to."""
        directory = self.outside(tmp_path)
        if directory is None:
            _write(self.make_store(tmp_path), key, data)
            return
        (directory / key).parent.mkdir(parents=True, exist_ok=True)
        (directory / key).write_bytes(data)

    def get(self, tmp_path: Path, key: str) -> bytes | None:
        """Read a file without the store, where there is a way to; None if it is not there."""
        directory = self.outside(tmp_path)
        if directory is None:
            store = self.make_store(tmp_path)
            return None if store.info(key) is None else store.read(key)
        return (directory / key).read_bytes() if (directory / key).exists() else None

    def test_bytes_written_are_the_bytes_found(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        _write(store, "a/b/file", b"hello")
        assert self.get(tmp_path, "a/b/file") == b"hello"

    def test_bytes_found_are_the_bytes_read(self, tmp_path: Path) -> None:
        self.put(tmp_path, "a/file", b"0123456789")
        store = self.make_store(tmp_path)
        assert store.read("a/file") == b"0123456789"
        assert store.read("a/file", 3) == b"3456789"
        assert store.read("a/file", 3, 4) == b"3456"
        assert store.read("a/file", 8, 100) == b"89"
        assert store.read("a/file", 100, 1) == b""
        assert store.read("a/file", 0, 0) == b""

    def test_info_tells_files_directories_and_absence(self, tmp_path: Path) -> None:
        self.put(tmp_path, "d/file", b"abc")
        store = self.make_store(tmp_path)
        file, directory = store.info("d/file"), store.info("d")
        assert file is not None and (file.key, file.is_dir, file.size_bytes) == ("d/file", False, 3)
        assert file.modified_s > 0
        assert directory is not None and directory.is_dir and directory.size_bytes == 0
        assert store.info("d/other") is None
        assert store.info("d/file/below") is None
        assert store.info("e/f/g") is None

    def test_a_missing_file_cannot_be_read(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        _raises(FileNotFoundError, lambda: store.read("none"))
        _raises(FileNotFoundError, lambda: store.read("none/at/all"))

    def test_list_has_direct_entries_sorted(self, tmp_path: Path) -> None:
        for key in ("d/b", "d/a", "d/sub/deep", "d/B"):
            self.put(tmp_path, key, b"x")
        store = self.make_store(tmp_path)
        assert [entry.key for entry in store.list("d")] == ["d/B", "d/a", "d/b", "d/sub"]
        assert [entry.is_dir for entry in store.list("d")] == [False, False, False, True]
        assert [entry.key for entry in store.list("")] == ["d"]
        assert store.list("none") == [] and store.list("d/a") == []

    def test_odd_names_stay_as_they_are_and_distinct(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        for number, name in enumerate(ODD_NAMES):
            _write(store, f"dir {name}/{name}", str(number).encode())
        for number, name in enumerate(ODD_NAMES):
            assert self.get(tmp_path, f"dir {name}/{name}") == str(number).encode(), name
            assert store.read(f"dir {name}/{name}") == str(number).encode(), name
            parent = f"dir {name}/{name}".rpartition("/")[0]
            assert f"dir {name}/{name}" in [entry.key for entry in store.list(parent)], name

    def test_keys_that_leave_the_root_are_refused_by_every_verb(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        _write(store, "a/file", b"x")
        for bad in ESCAPES:
            for number, call in enumerate(_calls_with(store, "a/file", bad)):
                _raises(PathRefusedError, call, f"call {number} with {bad!r}")
        assert self.get(tmp_path, "a/file") == b"x"
        assert [entry.key for entry in store.list("a")] == ["a/file"]

    def test_make_dir_makes_parents_and_may_be_repeated(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        for _ in range(2):
            store.make_dir("a/b/c")
        assert [entry.key for entry in store.list("a/b")] == ["a/b/c"]
        assert store.list("a/b/c") == []
        store.make_dir("")

    def test_a_file_in_the_way_of_a_directory_is_an_error(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        _write(store, "a/file", b"x")
        _raises(OSError, lambda: store.make_dir("a/file"))
        _raises(OSError, lambda: store.make_dir("a/file/below"))
        _raises(OSError, lambda: store.write_at("a/file/below", 0, b"x"))
        assert store.read("a/file") == b"x"

    def test_write_needs_its_parent(self, tmp_path: Path) -> None:
        """So that a late write to an attempt that was dropped fails instead of reviving it."""
        store = self.make_store(tmp_path)
        store.make_dir("")
        _raises(FileNotFoundError, lambda: store.write_at("gone/file", 0, b"late"))
        assert store.info("gone") is None

    def test_writes_at_offsets_in_any_order_and_again(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        store.make_dir("d")
        for offset, data in ((6, b"world"), (0, b"hello "), (6, b"world"), (3, memoryview(b"LO"))):
            store.write_at("d/file", offset, data)
        assert self.get(tmp_path, "d/file") == b"helLO world"

    def test_a_gap_reads_as_zeros(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        store.make_dir("d")
        store.write_at("d/file", 1_000_000, b"end")
        assert store.read("d/file", 999_998) == b"\0\0end"
        assert store.read("d/file", 0, 4) == bytes(4)

    def test_an_empty_write_makes_an_empty_file(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        store.make_dir("d")
        store.write_at("d/empty", 0, b"")
        assert self.get(tmp_path, "d/empty") == b""
        info = store.info("d/empty")
        assert info is not None and info.size_bytes == 0 and not info.is_dir

    def test_link_gives_a_second_name_and_may_be_repeated(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        _write(store, "d/first", b"same")
        for _ in range(2):
            store.link("d/first", "d/second")
        store.remove("d/first")
        assert self.get(tmp_path, "d/second") == b"same"

    def test_link_never_hides_another_file(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        _write(store, "d/first", b"first")
        _write(store, "d/second", b"second")
        _raises(FileExistsError, lambda: store.link("d/first", "d/second"))
        _raises(FileNotFoundError, lambda: store.link("d/none", "d/third"))
        assert store.read("d/second") == b"second" and store.info("d/third") is None

    def test_rename_moves_and_replaces_a_file(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        _write(store, "d/new", b"new")
        _write(store, "e/old", b"old and longer")
        store.rename("d/new", "e/old")
        assert self.get(tmp_path, "e/old") == b"new" and self.get(tmp_path, "d/new") is None
        _raises(FileNotFoundError, lambda: store.rename("d/new", "e/old"))
        assert self.get(tmp_path, "e/old") == b"new"

    def test_rename_moves_a_directory_whole(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        _write(store, "d/sub/file", b"x")
        store.make_dir("d/empty")
        store.make_dir("target")
        store.rename("d", "target/d")
        assert store.info("d") is None
        assert [entry.key for entry in store.list("target/d")] == ["target/d/empty", "target/d/sub"]
        assert self.get(tmp_path, "target/d/sub/file") == b"x"

    def test_rename_never_hides_a_directory_with_files(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        _write(store, "new/file", b"new")
        _write(store, "old/other", b"old")
        _write(store, "file", b"file")
        _raises(OSError, lambda: store.rename("new", "old"))
        _raises(OSError, lambda: store.rename("file", "old"))
        _raises(OSError, lambda: store.rename("new", "file"))
        _raises(FileNotFoundError, lambda: store.rename("file", "none/file"))
        assert store.read("old/other") == b"old" and store.read("new/file") == b"new"
        assert store.read("file") == b"file"

    def test_remove_may_be_repeated_and_spares_directories(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        _write(store, "d/file", b"x")
        for _ in range(2):
            store.remove("d/file")
        store.remove("none/at/all")
        assert self.get(tmp_path, "d/file") is None
        _raises(OSError, lambda: store.remove("d"))
        assert store.info("d") is not None

    def test_remove_tree_may_be_repeated(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        _write(store, "d/sub/file", b"x")
        _write(store, "keep/file", b"y")
        for _ in range(2):
            store.remove_tree("d")
        store.remove_tree("none/at/all")
        assert store.info("d") is None and self.get(tmp_path, "d/sub/file") is None
        assert self.get(tmp_path, "keep/file") == b"y"

    def test_sync_needs_its_key_and_may_be_repeated(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        _write(store, "d/sub/file", b"x")
        for _ in range(2):
            for key in ("d/sub/file", "d", ""):
                store.sync(key)
            store.sync_tree("d")
            store.sync_tree("")
        _raises(FileNotFoundError, lambda: store.sync("none"))
        _raises(FileNotFoundError, lambda: store.sync_tree("none"))
        assert store.read("d/sub/file") == b"x"

    def test_another_store_of_the_same_place_sees_the_same(self, tmp_path: Path) -> None:
        _write(self.make_store(tmp_path), "d/file", b"x")
        assert self.make_store(tmp_path).read("d/file") == b"x"

    def test_many_threads_write_one_file_and_many(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        chunk_bytes, chunk_count = 10_000, 64
        store.make_dir("d")

        def write(number: int) -> None:
            store.make_dir(f"many/{number % 4}")
            store.write_at("d/one", number * chunk_bytes, bytes([number]) * chunk_bytes)
            store.write_at(f"many/{number % 4}/{number}", 0, bytes([number]))
            store.sync("d/one")

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write, range(chunk_count)))
        want = b"".join(bytes([number]) * chunk_bytes for number in range(chunk_count))
        assert self.get(tmp_path, "d/one") == want
        assert sum(len(store.list(f"many/{group}")) for group in range(4)) == chunk_count

    def test_readers_see_the_old_file_or_the_new_one(self, tmp_path: Path) -> None:
        store = self.make_store(tmp_path)
        _write(store, "d/state", b"0" * 1000)

        def replace(number: int) -> bytes:
            _write(store, f"incoming/{number}", str(number % 10).encode() * 1000)
            store.rename(f"incoming/{number}", "d/state")
            return store.read("d/state")

        with ThreadPoolExecutor(4) as pool:
            for data in pool.map(replace, range(200)):
                assert len(data) == 1000 and len(set(data)) == 1


def _calls_with(store: Store, good: str, bad: str) -> list[Callable[[], object]]:
    return [
        lambda: store.info(bad), lambda: store.list(bad), lambda: store.read(bad),
        lambda: store.make_dir(bad), lambda: store.write_at(bad, 0, b"x"),
        lambda: store.link(good, bad), lambda: store.link(bad, f"{good}.new"),
        lambda: store.rename(good, bad), lambda: store.rename(bad, f"{good}.new"),
        lambda: store.remove(bad), lambda: store.remove_tree(bad),
        lambda: store.sync(bad), lambda: store.sync_tree(bad),
    ]  # fmt: skip


def _write(store: Store, key: str, data: bytes) -> None:
    store.make_dir(key.rpartition("/")[0])
    store.write_at(key, 0, data)


def _raises(kind: type[BaseException], call: Callable[[], object], what: str = "") -> None:
    try:
        call()
    except kind:
        return
    raise AssertionError(f"no {kind.__name__} {what}")
