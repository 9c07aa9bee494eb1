"""A store that fails, dies or is slow where a test says so."""

from __future__ import annotations

import builtins
import errno
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

from tune_sync.errors import StoreFullError
from tune_sync.homes.store import Info, Store

CHANGING_VERBS = frozenset(
    {"make_dir", "write_at", "link", "rename", "remove", "remove_tree", "sync", "sync_tree"}
)
ALL_VERBS = CHANGING_VERBS | {"info", "list", "read"}

When = Literal["before", "half", "after"]
_Result = TypeVar("_Result")


class Crashed(BaseException):
    """The process ends here. No `Exception`, so that no code under test goes on after it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong, and at which call.

    Attributes:
        at_count: The first call that it hits, counted from 1 over calls of `verbs`.
        error: Makes what is raised; None raises nothing (for a delay).
        lasting: All later calls of `verbs` fail too, before they do anything.
        when: "before" the call did anything; "half": a write, `remove_tree` or `sync_tree` did
            part of it; "after": it was done, and only the answer is lost.
        verbs: Which calls count.
        delay_s: Waited first.
    """

    at_count: int
    error: Callable[[], BaseException] | None = None
    lasting: bool = False
    when: When = "before"
    verbs: frozenset[str] = CHANGING_VERBS
    delay_s: float = 0.0


def crash_at(count: int, when: When = "before") -> Fault:
    """The process dies at this change of the store, and so does whatever it tries later."""
    return Fault(count, Crashed, lasting=True, when=when)


def os_error(code: int) -> Callable[[], OSError]:
    """An `error` for `Fault`, such as `os_error(errno.EIO)`."""
    return lambda: OSError(code, os.strerror(code))


def full() -> StoreFullError:
    """An `error` for `Fault`: what a store raises when its disk is full."""
    return StoreFullError(errno.ENOSPC, "no space left; make room")


class FaultStore:
    """Any store, with faults. Safe to use from many threads.

    Args:
        base: The store that does the work.
        faults: What goes wrong.
        sleep: Waits for delays; give a recorder where no time shall pass.
    """

    def __init__(
        self, base: Store, *faults: Fault, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.base = base
        self.calls: builtins.list[tuple[str, str]] = []
        self._faults = faults
        self._sleep = sleep
        self._count_lock = threading.Lock()
        self._counts = [0] * len(faults)

    def count(self, verbs: frozenset[str] = CHANGING_VERBS) -> int:
        """How many calls of `verbs` there were so far; `calls` lists them as (verb, key)."""
        return sum(verb in verbs for verb, _ in self.calls)

    def info(self, key: str) -> Info | None:
        """See `Store.info`."""
        return self._do("info", key, lambda: self.base.info(key))

    def list(self, key: str) -> list[Info]:
        """See `Store.list`."""
        return self._do("list", key, lambda: self.base.list(key))

    def read(self, key: str, offset_bytes: int = 0, length_bytes: int | None = None) -> bytes:
        """See `Store.read`."""
        return self._do("read", key, lambda: self.base.read(key, offset_bytes, length_bytes))

    def make_dir(self, key: str) -> None:
        """See `Store.make_dir`."""
        self._do("make_dir", key, lambda: self.base.make_dir(key))

    def write_at(self, key: str, offset_bytes: int, data: bytes | memoryview) -> None:
        """See `Store.write_at`."""
        first = data[: len(data) // 2]
        self._do(
            "write_at", key,
            lambda: self.base.write_at(key, offset_bytes, data),
            lambda: self.base.write_at(key, offset_bytes, first),
        )  # fmt: skip

    def link(self, source: str, target: str) -> None:
        """See `Store.link`."""
        self._do("link", target, lambda: self.base.link(source, target))

    def rename(self, source: str, target: str) -> None:
        """See `Store.rename`."""
        self._do("rename", target, lambda: self.base.rename(source, target))

    def remove(self, key: str) -> None:
        """See `Store.remove`."""
        self._do("remove", key, lambda: self.base.remove(key))

    def remove_tree(self, key: str) -> None:
        """See `Store.remove_tree`."""
        self._do(
            "remove_tree", key,
            lambda: self.base.remove_tree(key),
            lambda: self._each_second(key, self.base.remove),
        )  # fmt: skip

    def sync(self, key: str) -> None:
        """See `Store.sync`."""
        self._do("sync", key, lambda: self.base.sync(key))

    def sync_tree(self, key: str) -> None:
        """See `Store.sync_tree`."""
        self._do(
            "sync_tree", key,
            lambda: self.base.sync_tree(key),
            lambda: self._each_second(key, self.base.sync),
        )  # fmt: skip

    def _do(
        self, verb: str, key: str, call: Callable[[], _Result],
        half: Callable[[], object] = lambda: None,
    ) -> _Result:  # fmt: skip
        for fault, hit_count in self._hits(verb, key):
            if fault.delay_s:
                self._sleep(fault.delay_s)
            if fault.error is None:
                continue
            if hit_count == fault.at_count and fault.when != "before":
                half() if fault.when == "half" else call()
            raise fault.error()
        return call()

    def _hits(self, verb: str, key: str) -> builtins.list[tuple[Fault, int]]:
        hits = []
        with self._count_lock:
            self.calls.append((verb, key))
            for index, fault in enumerate(self._faults):
                if verb not in fault.verbs:
                    continue
                self._counts[index] += 1
                count = self._counts[index]
                if count == fault.at_count or (fault.lasting and count > fault.at_count):
                    hits.append((fault, count))
        return hits

    def _each_second(self, top: str, act: Callable[[str], None]) -> None:
        files = [entry.key for entry in self._below(top) if not entry.is_dir]
        for key in files[::2]:
            act(key)

    def _below(self, top: str) -> builtins.list[Info]:
        found = []
        for entry in self.base.list(top):
            found += [entry, *self._below(entry.key)] if entry.is_dir else [entry]
        return found
