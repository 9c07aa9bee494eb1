"""Many small files are read with few questions, each once, by any number of threads."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from tune_sync.homes.home import LocalHome
from tune_sync.transfer import small_files
from tune_sync.transfer.small_files import SMALL_BYTES, SmallFiles


class CountingHome(LocalHome):
    """Notes how many files each question was about."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.asked: list[int] = []

    def read_many(self, keys: Sequence[str]) -> list[bytes]:
        self.asked.append(len(keys))
        return super().read_many(keys)


def make(root: Path, sizes: Sequence[int]) -> tuple[CountingHome, SmallFiles]:
    (root / "c/sub").mkdir(parents=True)
    for number, size_bytes in enumerate(sizes):
        (root / f"c/{number:05}").write_bytes(content(number, size_bytes))
    home = CountingHome(root)
    return home, SmallFiles(home, home.list("c", True))


def content(number: int, size_bytes: int) -> bytes:
    return number.to_bytes(4, "big")[:size_bytes] + bytes(max(0, size_bytes - 4))


def test_files_read_in_order_come_in_batches(tmp_path: Path) -> None:
    home, small = make(tmp_path, [10] * 4500)
    for number in range(4500):
        assert small.take(f"c/{number:05}") == content(number, 10)
    assert home.asked == [2000, 2000, 500]


def test_what_is_on_its_way_is_used_by_readers_that_overtake_each_other(tmp_path: Path) -> None:
    home, small = make(tmp_path, [10] * 6500)
    in_turns = [*range(2000), 2003, 2001, 2000, 2002, *range(2004, 4100), 6000, *range(4100, 6000)]
    for number in in_turns:
        assert small.take(f"c/{number:05}") == content(number, 10)
    assert sorted(count for count in home.asked if count > 1) == [500, 2000, 2000, 2000]


def test_a_batch_has_a_limit_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_files, "BATCH_BYTES", 100)
    home, small = make(tmp_path, [60, 40, 1, 1000, 0, 0, 99])
    for number, size_bytes in enumerate([60, 40, 1, 1000, 0, 0, 99]):
        assert small.take(f"c/{number:05}") == content(number, size_bytes)
    assert home.asked == [2, 1, 1, 3]


def test_large_files_and_unknown_names_are_not_its_business(tmp_path: Path) -> None:
    home, small = make(tmp_path, [SMALL_BYTES, SMALL_BYTES + 1])
    assert small.take("c/00000") is not None
    assert small.take("c/00001") is None
    assert small.take("c/absent") is None
    assert small.take("c/sub") is None
    assert home.asked == [1]


def test_a_file_may_be_read_again_and_in_any_order(tmp_path: Path) -> None:
    _, small = make(tmp_path, [10] * 100)
    for number in (99, 0, 50, 50, 1, 99):
        assert small.take(f"c/{number:05}") == content(number, 10)


def test_many_threads_get_each_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_files, "BATCH_COUNT", 100)
    home, small = make(tmp_path, [10] * 2000)
    numbers, wrong = iter(range(2000)), []
    next_lock = threading.Lock()

    def work() -> None:
        while True:
            with next_lock:
                number = next(numbers, None)
            if number is None:
                return
            if small.take(f"c/{number:05}") != content(number, 10):
                wrong.append(number)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(home.asked) < 60


def test_a_file_that_is_gone_is_an_error_and_not_an_empty_file(tmp_path: Path) -> None:
    _, small = make(tmp_path, [10, 10])
    (tmp_path / "c/00001").unlink()
    with pytest.raises(FileNotFoundError):
        small.take("c/00000")
