"""Which files of an experiment, outside of its checkpoints, are new to its mirror."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from tune_sync import layout

Signature = tuple[int, int, int]

# Of what trainers inside of trials have for themselves, only what says what is whole.
_OURS = {"format.json", "manifests"}


class KnownFiles:
    """Which versions of files were sent. Every file at home is replaced whole, never written into.

    Args:
        root: The experiment directory.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._sent: dict[str, Signature] = {}

    def new_state(self) -> dict[str, Signature]:
        """Ray's files of the experiment itself, as far as they are not sent."""
        return self._new(_entries(self._root, "", directories=False))

    def new_trial_files(self) -> dict[str, Signature]:
        """What trials have written, without their checkpoints, as far as it is not sent."""
        found = (
            file
            for trial in _directories(self._root)
            if trial.name != layout.INTERNAL_DIR
            for file in _walk(trial.path, trial.name)
        )
        return self._new(found)

    def sent(self, files: dict[str, Signature]) -> None:
        """Note what was sent."""
        self._sent.update(files)

    def _new(self, found: Iterable[tuple[str, Signature]]) -> dict[str, Signature]:
        return {key: version for key, version in found if self._sent.get(key) != version}


def _walk(here: str, key: str) -> Iterator[tuple[str, Signature]]:
    yield from _entries(here, key + "/", directories=True)


def _entries(
    here: str | Path, prefix: str, *, directories: bool
) -> Iterator[tuple[str, Signature]]:
    try:
        entries = list(os.scandir(here))
    except FileNotFoundError:
        return
    for entry in entries:
        key = prefix + entry.name
        if not _goes_along(key):
            continue
        if entry.is_file(follow_symlinks=False):
            found = _signature(entry)
            if found is not None:
                yield key, found
        elif directories and entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path, key)


def _goes_along(key: str) -> bool:
    """Whether something is no checkpoint of the experiment, and nothing on its way."""
    *above, name = key.split("/")
    if len(above) == 1 and layout.is_checkpoint_name(name):
        return False
    return layout.INTERNAL_DIR not in above[-1:] or name in _OURS


def _directories(root: Path) -> list[os.DirEntry[str]]:
    return [entry for entry in os.scandir(root) if entry.is_dir(follow_symlinks=False)]


def _signature(entry: os.DirEntry[str]) -> Signature | None:
    try:
        found = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
