"""Verbs of a filesystem that are the same for every run: refused, or made of others."""

from __future__ import annotations

import shutil

import pyarrow as pa
import pyarrow.fs as pafs

from tune_sync.errors import ConfigError, PathRefusedError
from tune_sync.transfer.streams import COPY_BYTES


class PlainVerbs(pafs.FileSystemHandler):  # type: ignore[misc]
    """What a handler need not look at its run for."""

    def get_type_name(self) -> str:
        """Shown in Ray's messages."""
        return "tune_sync"

    def normalize_path(self, path: str) -> str:
        """Paths are taken as they are."""
        return path

    def open_append_stream(self, path: str, metadata: object) -> pa.PythonFile:
        """Refused: what is stored is replaced whole."""
        raise ConfigError(f"cannot append to {path}: write the whole file again")

    def delete_root_dir_contents(self) -> None:
        """Refused."""
        raise PathRefusedError("refused to delete everything below the storage path")

    def move(self, source: str, target: str) -> None:
        """Refused: results are written once, in their place."""
        raise ConfigError(f"cannot move {source} to {target}: copy it, then delete it")

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        """Remove what a directory holds."""
        for info in self.get_file_info_selector(pafs.FileSelector(path, missing_dir_ok)):
            remove = self.delete_dir if info.type == pafs.FileType.Directory else self.delete_file
            remove(info.path)

    def copy_file(self, source: str, target: str) -> None:
        """Copy a file within the experiment."""
        writer = self.open_output_stream(target, None)
        with self.open_input_file(source) as reader:
            shutil.copyfileobj(reader, writer, COPY_BYTES)
        writer.close()  # as in `send_file`
