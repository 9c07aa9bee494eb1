"""Copies by the kernel, and whether a file is being written: with and without its help."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tune_sync.behind import file_calls
from tune_sync.behind.file_calls import copy_file, is_being_written
from tune_sync.errors import StoreFullError

BODY = bytes(range(256)) * 5000


def source_in(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    source.write_bytes(BODY)
    return source


@pytest.mark.parametrize("way", ["kernel", "not between these", "says nothing is there", "half"])
def test_a_copy_is_whole_whatever_the_kernel_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    real, calls = os.copy_file_range, []

    def stands_in(source: int, target: int, size_bytes: int) -> int:
        calls.append(size_bytes)
        if way == "half" and len(calls) == 1:
            return real(source, target, len(BODY) // 2)
        if way in ("half", "not between these"):
            raise OSError(errno.EXDEV, "other file system")
        return 0

    if way != "kernel":
        monkeypatch.setattr(file_calls.os, "copy_file_range", stands_in)
    copy_file(source_in(tmp_path), tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == BODY
    assert bool(calls) == (way != "kernel")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_of_a_copy_that_fails_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def fails(*args: Any) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(file_calls.os, "copy_file_range", fails)
    with pytest.raises(OSError, match=os.strerror(code)) as raised:
        copy_file(source_in(tmp_path), tmp_path / "target")
    assert isinstance(raised.value, StoreFullError) == (code == errno.ENOSPC)
    assert not (tmp_path / "target").exists()


def test_who_writes_is_told_from_who_reads_and_may_open_it_again(tmp_path: Path) -> None:
    source = source_in(tmp_path)
    with source.open("rb"):
        assert not is_being_written(source)
    with source.open("ab") as writer:
        assert is_being_written(source)
        assert writer.write(b"more") == 4
    assert not is_being_written(source)
    source.write_bytes(b"")  # nothing holds it back


def test_where_the_kernel_does_not_tell_nobody_is_taken_for_a_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*args: Any) -> int:
        raise OSError(errno.EINVAL, "no leases here")

    monkeypatch.setattr(file_calls.fcntl, "fcntl", cannot)
    with source_in(tmp_path).open("ab"):
        assert not is_being_written(tmp_path / "source")
