"""A local directory as the source of a reported checkpoint, sent file by file without copies."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs

from tune_sync.errors import ConfigError
from tune_sync.filesystem import SyncHandler
from tune_sync.transfer.tree import Tree, scan


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
        """As the local filesystem says."""
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
        for file in self._tree.files:
            self._target.send_file(file, f"{directory}/{file.path}", directory)

    def open_input_stream(self, path: str) -> Any:
        """Read a file."""
        return pafs.LocalFileSystem().open_input_stream(path)

    def open_input_file(self, path: str) -> Any:
        """Read a file."""
        return pafs.LocalFileSystem().open_input_file(path)

    def _refuse(self, *args: object) -> Any:
        raise ConfigError("a source directory is only read")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = _refuse
    delete_file = move = open_output_stream = open_append_stream = _refuse
