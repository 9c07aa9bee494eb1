"""A local directory as the source of a reported checkpoint, sent file by file without copies."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs

from tune_sync.errors import ConfigError
from tune_sync.filesystem import SyncHandler
from tune_sync.transfer.tree import Tree, TreeFile, scan

METADATA = ".metadata.json"  # as Ray names it


class SourceHandler(pafs.FileSystemHandler):  # type: ignore[misc]
    """Reads a directory for `pyarrow.fs.copy_files`.

    It says that it is equal to a run's filesystem. pyarrow then asks it to copy each file by
    name, instead of pulling the bytes through buffers of its own.

    Args:
        root: The directory; scanned at once, so that a link that cannot be sent is told early.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._tree: Tree = scan(root)
        self._sendings: dict[str, Future[None]] = {}  # by target directory
        self._sendings_lock = threading.Lock()
        self._target: SyncHandler | None = None

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SyncHandler):
            self._target = other
            return True
        return other is self

    def __hash__(self) -> int:
        return id(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return SourceHandler, (self._root,)

    def get_type_name(self) -> str:
        """Shown in Ray's messages."""
        return "tune_sync source"

    def normalize_path(self, path: str) -> str:
        """Paths are taken as they are."""
        return path

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        """As the local filesystem says. A report begins with this.

        Raises:
            FileNotFoundError: The directory is gone; pyarrow would copy what is not there as empty.
        """
        if str(self._root) in paths and not self._root.is_dir():
            raise FileNotFoundError(
                f"{self._root} was removed before it was reported: call tune.report inside the "
                "`with` block that made the directory"
            )
        found: list[pafs.FileInfo] = pafs.LocalFileSystem().get_file_info(paths)
        return found

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        """What the directory holds, by the rules of `tree`."""
        if Path(selector.base_dir) != self._root:
            raise FileNotFoundError(selector.base_dir)
        self._tree = scan(self._root)  # as it is now, when it is being reported
        self._sendings = {}
        found = [
            pafs.FileInfo(f"{selector.base_dir}/{d}", pafs.FileType.Directory)
            for d in self._tree.directories
        ]
        return found + [
            pafs.FileInfo(f"{selector.base_dir}/{f.path}", pafs.FileType.File, size=f.size_bytes)
            for f in self._tree.files
            if not f.same_as
        ]

    def copy_file(self, source: str, target: str) -> None:
        """Send the directory to the run's home; returns when all of it was sent.

        pyarrow asks for every file, in several threads. The first one sends them all: together
        they would only wait for each other, and each need memory.
        """
        directory = target[: len(target) - len(source) + len(str(self._root))]
        with self._sendings_lock:
            mine = directory not in self._sendings
            sending = self._sendings.setdefault(directory, Future())
        if mine:
            try:
                self._send_to(directory)
                sending.set_result(None)
            except BaseException as error:
                sending.set_exception(error)
        sending.result()

    def _send_to(self, directory: str) -> None:
        if self._target is None:
            raise ConfigError("a source directory can only be copied to a run's filesystem")
        for file in self._in_order(self._tree):
            self._target.send_file(file, f"{directory}/{file.path}", directory)

    def _in_order(self, tree: Tree) -> Iterable[TreeFile]:
        """What is sent, in the order in which it is."""
        return tree.files

    def open_input_stream(self, path: str) -> Any:
        """Read a file."""
        return pafs.LocalFileSystem().open_input_stream(path)

    def open_input_file(self, path: str) -> Any:
        """Read a file."""
        return pafs.LocalFileSystem().open_input_file(path)

    def open_output_stream(self, path: str, metadata: Mapping[str, str] | None) -> Any:
        """Write what `Checkpoint.set_metadata` sets: no other file. Raises ConfigError."""
        if Path(path) != self._root / METADATA:
            self._refuse()
        return pafs.LocalFileSystem().open_output_stream(path)

    def _refuse(self, *args: object) -> Any:
        raise ConfigError("a source directory is only read")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    delete_file = move = open_append_stream = _refuse


class GivenHandler(SourceHandler):
    """A directory whose files may be had: it is empty once it was reported.

    Args:
        root: The directory.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._is_over = False

    @property
    def filesystem(self) -> pafs.PyFileSystem:
        """For a `Checkpoint`."""
        return pafs.PyFileSystem(self)

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        """See `SourceHandler.get_file_info`."""
        if self._is_over:
            raise ConfigError(
                f"{self._root} was reported before, and its files have gone with that: make a "
                "staged_checkpoint() for each report"
            )
        return super().get_file_info(paths)

    def _send_to(self, directory: str) -> None:
        self._is_over = True
        super()._send_to(directory)
        shutil.rmtree(self._root, ignore_errors=True)

    def _in_order(self, tree: Tree) -> Iterable[TreeFile]:
        """What has to be copied comes first: a link may lead to what is given away."""
        real = self._root.resolve()
        own = {file.path for file in tree.files if file.source == real / file.path}  # no links
        names = Counter(file.same_as or file.path for file in tree.files if file.path in own)

        def marked(file: TreeFile) -> TreeFile:
            # Another name elsewhere could be written to.
            is_alone = file.source.stat().st_nlink <= names[file.path]
            return replace(file, is_given=is_alone and not file.same_as)

        files = [marked(file) for file in tree.files]
        return sorted(files, key=lambda file: (bool(file.same_as), file.is_given))
