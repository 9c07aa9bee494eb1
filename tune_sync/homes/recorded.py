"""What is published or staged in an experiment directory, read only."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from tune_sync import layout
from tune_sync.homes.store import Info
from tune_sync.manifest import FileEntry, Manifest


@dataclass(frozen=True, slots=True)
class Recovery:
    """What `Committer.recover` did.

    Attributes:
        completed: Checkpoints whose manifest was recorded after all.
        dropped: Staged checkpoints that were not whole, or that nobody can tell to be.
        forgotten: Published checkpoints that someone else removed.
    """

    completed: tuple[str, ...]
    dropped: tuple[str, ...]
    forgotten: tuple[str, ...] = ()


class Readable(Protocol):
    """What is needed of `store.Store`."""

    def info(self, key: str) -> Info | None:
        """What `key` is."""

    def list(self, key: str) -> builtins.list[Info]:
        """The direct entries of a directory."""


class Snapshot(Readable, Protocol):
    """What a restore looks at. What changes later need not show in it."""

    def manifest(self, checkpoint: str) -> Manifest | None:
        """See `Committer.manifest`."""


class LiveSnapshot:
    """A `Snapshot` that looks each time: where that is fast.

    Args:
        store: Rooted at the experiment.
        manifest: See `Committer.manifest`.
    """

    def __init__(self, store: Readable, manifest: Callable[[str], Manifest | None]) -> None:
        self.info, self.list, self.manifest = store.info, store.list, manifest


def recorded(store: Readable, below: str = layout.MANIFESTS_DIR) -> Iterator[str]:
    """Keys of checkpoints that have a manifest, in order. Reads none of them."""
    for entry in store.list(below):
        if entry.is_dir:
            yield from recorded(store, entry.key)
        else:
            yield entry.key.removeprefix(layout.MANIFESTS_DIR + "/").removesuffix(".json")


def newest_of(checkpoints: Iterable[str]) -> dict[str, str]:
    """Trial directory -> the latest of its checkpoints."""
    return {layout.parent(key): key for key in sorted(checkpoints, key=layout.by_age)}


def staged(store: Readable) -> Iterator[str]:
    """Keys of checkpoints with anything in staging, at whatever depth Ray puts them."""
    todo = [layout.STAGING_DIR]
    while todo:
        for entry in store.list(todo.pop()):
            key = entry.key.removeprefix(layout.STAGING_DIR + "/")
            if layout.is_checkpoint_name(key.rsplit("/", 1)[-1]):
                yield key
            elif entry.is_dir:
                todo.append(entry.key)


def recorded_numbers(store: Readable) -> dict[str, set[int]]:
    """Trial directory -> numbers of its published checkpoints that are there."""
    found: dict[str, set[int]] = {}
    for key in recorded(store):
        number = layout.checkpoint_number(key)
        if number is not None and store.info(key) is not None:
            found.setdefault(layout.parent(key), set()).add(number)
    return found


def is_whole(store: Readable, manifest: Manifest) -> bool:
    """Whether every file of a published checkpoint is there, as long as it should be."""
    return not first_wrong(store, manifest.checkpoint, manifest.files)


def first_wrong(store: Readable, directory: str, files: Iterable[FileEntry]) -> str:
    """Says of the first file that is not there as long as it should be what is there; else ""."""
    for file in files:
        key = f"{directory}/{file.path}"
        found = store.info(key)
        if found is None or found.is_dir or found.size_bytes != file.size_bytes:
            got = "missing" if found is None else f"{found.size_bytes} bytes"
            return f"{key} is {got}, not {file.size_bytes} bytes"
    return ""
