"""`SharedDirectorySyncer`: directories to and from a directory that all nodes see."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tune_sync.buckets.url import redacted
from tune_sync.destination import parse_destination
from tune_sync.errors import ConfigError, PathRefusedError
from tune_sync.filters import matches
from tune_sync.same import is_below, is_same_directory
from tune_sync.syncers.base import BackgroundSyncer
from tune_sync.transfer.tree import Tree, scan


class SharedDirectorySyncer(BackgroundSyncer):
    """What `SyncConfig(upload_dir="/a/path")` uses. Remote directories are paths.

    In a `SyncConfig` it says that every node writes to the directory itself. Its methods copy
    plain directories, file by file, each whole or not at all.
    """

    def sync_up(self, local_dir: str, remote_dir: str, exclude: list[str] | None = None) -> bool:
        """Copy a directory to the shared one.

        Nothing is copied if both are one directory.

        Raises:
            ConfigError: `remote_dir` is the URL of a bucket.
            PathRefusedError: A link in it that cannot be copied; see `tune_sync.transfer.tree`.
                Or the target is inside of it.
        """
        tree = scan(Path(local_dir))
        return self._copy(Path(local_dir), _path(remote_dir), tuple(exclude or ()), lambda: tree)

    def sync_down(self, remote_dir: str, local_dir: str, exclude: list[str] | None = None) -> bool:
        """Copy a directory from the shared one.

        Raises:
            PathRefusedError: As for `sync_up`, but for a link: that is raised by `wait`.
        """
        source = _path(remote_dir)
        return self._copy(source, Path(local_dir), tuple(exclude or ()), lambda: scan(source))

    def delete(self, remote_dir: str) -> bool:
        """Delete a directory; fine if it is not there."""
        directory = _path(remote_dir)
        return self._start(lambda: _remove(directory, self.check), f"delete of {directory}")

    def _copy(
        self, source: Path, target: Path, patterns: tuple[str, ...], look: Callable[[], Tree]
    ) -> bool:
        if is_below(target, source):
            raise PathRefusedError(
                f"{target} is inside of {source}: every copy would hold the ones before; choose a "
                "target outside of it"
            )
        doing = f"copy of {source} to {target}"
        if is_same_directory(source, target):
            return self._start(lambda: None, doing)

        def copy() -> None:
            tree = look()
            self.check()
            target.mkdir(parents=True, exist_ok=True)
            for directory in tree.directories:
                if not matches(directory, patterns):
                    self.check()
                    (target / directory).mkdir(parents=True, exist_ok=True)
            for file in tree.files:
                if not matches(file.path, patterns):
                    self.check()
                    _copy_whole(file.source, target / file.path, self.check)

        return self._start(copy, doing)


def _path(remote_dir: str) -> Path:
    found = parse_destination(remote_dir)
    if found.scheme:
        raise ConfigError(
            f"{redacted(remote_dir)!r}: SharedDirectorySyncer takes the path of a directory; for a "
            "bucket use CloudSyncer"
        )
    return Path(found.path)


def _copy_whole(source: Path, target: Path, check: Callable[[], None]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{uuid.uuid4().hex}")
    try:
        shutil.copyfile(source, fresh)
        check()
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)


def _remove(directory: Path, check: Callable[[], None]) -> None:
    """As `shutil.rmtree`, which asks nobody on its way. Fine if another one removes it, too."""
    if directory.is_symlink():
        raise PathRefusedError(f"{directory} is a link; remove what it points to, or the link")
    with suppress(FileNotFoundError):
        with os.scandir(directory) as entries:
            found = list(entries)
        for entry in found:
            check()
            if entry.is_dir(follow_symlinks=False):
                _remove(Path(entry.path), check)
            else:
                Path(entry.path).unlink(missing_ok=True)
        check()
        directory.rmdir()
