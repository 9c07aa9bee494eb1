"""The kernel as the code under test sees it: each change of files is counted, and may be the last.

What is staged on a node is written in many ways: by a store, by `open`, by the kernel's own
copying, by `shutil`. They meet in the system calls, so that is where the loop crashes. What is
done below `root` is done for real; on hosts that are modelled it is done in a `CrashStore` too,
which knows what a power cut leaves. Boots and processes are the loop's: whoever crashed is dead
for those after it.
"""

from __future__ import annotations

import builtins
import io
import os
import random
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from tune_sync.homes.store import Store
from tune_sync.testing.crash_store import CrashStore
from tune_sync.testing.fault_store import Fault, FaultStore

T = TypeVar("T")
Mirror = Callable[[CrashStore, str], object]

BOOT = "/proc/sys/kernel/random/boot_id"
STAT = re.compile(r"/proc/([0-9]+)/stat")
# Above any pid of Linux: these processes are the loop's.
FIRST_PID, PIDS_COUNT = 1 << 23, 1000
CHANGING = (
    "open", "mkdir", "rename", "replace", "link", "unlink", "remove", "rmdir", "pwrite", "fsync",
    "ftruncate", "copy_file_range", "sendfile",
)  # fmt: skip
OWN = ("getpid", "urandom")
REAL: dict[str, Any] = {name: getattr(os, name) for name in CHANGING}
REAL_OPEN, REAL_GETPID = builtins.open, os.getpid


class Kernel:
    """For one thread at a time, which may be any.

    Args:
        root: What is below it is watched; the first part of a key is the host.
        faults: When it crashes.
        disks: Host -> the model of its disk.
        boot: Of all hosts.
        life: Processes of lives before are dead.
        forgets: Functions, as they call each other: what they bring to disk is not.
    """

    def __init__(
        self, root: Path, *faults: Fault, disks: dict[str, CrashStore] | None = None,
        boot: int = 1, life: int = 0, forgets: str = "",
    ) -> None:  # fmt: skip
        self.root = os.path.realpath(root)
        self.disks = disks or {}
        self.boot = boot
        self._first_pid = FIRST_PID + life * PIDS_COUNT
        self._dead: set[int] = set()
        self._process = 0
        self.files = FaultStore(cast(Store, None), *faults)
        self._forgets = forgets.split()
        self._is_elsewhere = False
        self._bytes = random.Random(life)

    @contextmanager
    def running(self) -> Iterator[None]:
        """All code meets this kernel meanwhile."""
        with pytest.MonkeyPatch.context() as patch:
            for name in (*CHANGING, *OWN):
                patch.setattr(os, name, getattr(self, f"_{name}"))
            patch.setattr(builtins, "open", self._open_file)
            patch.setattr(io, "open", self._open_file)
            yield

    @contextmanager
    def as_process(self, number: int) -> Iterator[None]:
        """What is done meanwhile is done by this process."""
        before, self._process = self._process, self._first_pid + number
        try:
            yield
        finally:
            self._process = before

    def kill(self, number: int) -> None:
        """That process has ended."""
        self._dead.add(self._first_pid + number)

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """What is done meanwhile is done on a host that does not crash."""
        self._is_elsewhere = True
        try:
            yield
        finally:
            self._is_elsewhere = False

    # Inside: one method for each call

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        def act() -> int:
            return cast(int, REAL["open"](path, flags, mode, dir_fd=dir_fd))

        key = self._key(path, dir_fd)
        if not key or not flags & os.O_CREAT:
            return act()
        if os.path.lexists(f"{self.root}/{key}"):
            assert not flags & os.O_TRUNC, f"the model cannot cut {key}"
            return act()
        return self._do("link", key, act, lambda disk, inner: disk.write_at(inner, 0, b""))

    def _open_file(self, file: Any, mode: str = "r", *args: Any, **more: Any) -> Any:
        name = "" if isinstance(file, int) else os.fsdecode(file)
        if name == BOOT:
            return io.StringIO(f"boot {self.boot}\n")
        pid = int(found[1]) if (found := STAT.fullmatch(name)) else 0
        if pid >= FIRST_PID:
            is_dead = pid < self._first_pid or pid in self._dead
            return REAL_OPEN("/proc/no such process" if is_dead else "/proc/self/stat")
        if not name or not self._key(name) or not set(mode) & set("wax+"):
            return REAL_OPEN(file, mode, *args, **more)
        if "b" not in mode:  # for its lock
            return REAL_OPEN(file, mode, *args, opener=self._open, **more)
        return _Raw(self, file, mode)

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        self._on(
            "make_dir", path, dir_fd, lambda: REAL["mkdir"](path, mode, dir_fd=dir_fd),
            lambda disk, key: disk.make_dir(key),
        )  # fmt: skip

    def _rename(self, source: Any, target: Any, **more: Any) -> None:
        old = (self._key(source, more.get("src_dir_fd")) or "").partition("/")[2]
        self._on(
            "rename", target, more.get("dst_dir_fd"),
            lambda: REAL["rename"](source, target, **more),
            lambda disk, key: disk.rename(old, key),
        )  # fmt: skip

    _replace = _rename

    def _link(self, source: Any, target: Any, **more: Any) -> None:
        old = (self._key(source) or "").partition("/")[2]
        self._on(
            "link", target, None, lambda: REAL["link"](source, target, **more),
            lambda disk, key: disk.link(old, key),
        )  # fmt: skip

    def _unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._on(
            "remove", path, dir_fd, lambda: REAL["unlink"](path, dir_fd=dir_fd),
            lambda disk, key: disk.remove(key),
        )  # fmt: skip

    _remove = _unlink

    def _rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._on(
            "remove", path, dir_fd, lambda: REAL["rmdir"](path, dir_fd=dir_fd),
            lambda disk, key: disk.remove_tree(key),
        )  # fmt: skip

    def _ftruncate(self, file: int, length: int) -> None:
        key = self._key_of(file)
        host = (key or "").partition("/")[0]
        assert host not in self.disks, f"the model cannot cut {key}"
        self._do("link", key, lambda: REAL["ftruncate"](file, length), lambda disk, inner: None)

    def _fsync(self, file: int) -> None:
        if (key := self._key_of(file)) and not self._is_forgotten():
            self._do("sync", key, lambda: None, lambda disk, inner: disk.sync(inner))

    def _pwrite(self, file: int, data: Any, offset: int) -> int:
        key = self._key_of(file)
        if not key:
            return cast(int, REAL["pwrite"](file, data, offset))
        whole = bytes(data)

        def put(some: bytes) -> Callable[[], int]:
            return lambda: cast(int, REAL["pwrite"](file, some, offset))

        def mirror(some: bytes) -> Mirror:
            return lambda disk, inner: disk.write_at(inner, offset, some)

        half = whole[: len(whole) // 2]
        return self._do("write_at", key, put(whole), mirror(whole), put(half), mirror(half))

    def _copy_file_range(self, source: int, target: int, count: int) -> int:
        return self._written(target, os.read(source, count))

    def _sendfile(self, target: int, source: int, offset: int, count: int) -> int:
        return self._written(target, os.pread(source, count, offset))

    def _written(self, file: int, data: Any) -> int:
        """Write where the file is."""
        at_bytes = os.lseek(file, 0, os.SEEK_CUR)
        written = self._pwrite(file, data, at_bytes) if len(data) else 0
        os.lseek(file, at_bytes + written, os.SEEK_SET)
        return written

    def _getpid(self) -> int:
        return self._process or REAL_GETPID()

    def _urandom(self, count: int) -> bytes:
        return self._bytes.randbytes(count)  # each run of a story is the same

    # Inside: what they share

    def _on(
        self, verb: str, path: Any, dir_fd: int | None, act: Callable[[], T], mirror: Mirror
    ) -> T:
        return self._do(verb, self._key(path, dir_fd), act, mirror)

    def _do(
        self, verb: str, key: str | None, act: Callable[[], T], mirror: Mirror,
        half: Callable[[], object] = lambda: None, half_mirror: Mirror = lambda disk, key: None,
    ) -> T:  # fmt: skip
        if key is None:
            return act()
        host, _, inner = key.partition("/")

        def both(act: Callable[[], T], mirror: Mirror) -> T:
            result = act()
            if host in self.disks:
                mirror(self.disks[host], inner)
            return result

        if self._is_elsewhere:
            return both(act, mirror)
        return self.files._do(
            verb, key, lambda: both(act, mirror), lambda: both(cast(Any, half), half_mirror)
        )

    def _key(self, path: Any, dir_fd: int | None = None) -> str | None:
        if isinstance(path, int):
            return self._key_of(path)
        name = os.fsdecode(path)
        if dir_fd is not None and not os.path.isabs(name):
            name = f"{os.readlink(f'/proc/self/fd/{dir_fd}')}/{name}"
        inside = name.startswith(self.root + "/")
        return os.path.normpath(name)[len(self.root) + 1 :] or None if inside else None

    def _key_of(self, file: int) -> str | None:
        return self._key(os.readlink(f"/proc/self/fd/{file}"))

    def _is_forgotten(self) -> bool:
        """Whether the functions that forget are on the stack, in their order."""
        frame, wanted = sys._getframe(1), list(self._forgets)
        while frame.f_back is not None and wanted:
            frame = frame.f_back
            if frame.f_code.co_name == wanted[-1]:
                wanted.pop()
        return bool(self._forgets) and not wanted


class _Raw(io.FileIO):
    """A file that is written, without a buffer."""

    def __init__(self, kernel: Kernel, file: Any, mode: str) -> None:
        self._kernel = kernel
        super().__init__(file, mode.replace("b", ""), opener=kernel._open)

    def write(self, data: Any) -> int:
        return self._kernel._written(self.fileno(), memoryview(data).cast("B"))
