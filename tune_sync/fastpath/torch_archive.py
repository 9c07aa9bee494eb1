"""The file that `torch.save` would write, as a plan: what goes where.

`torch.save` of an object pickles it and then writes a zip archive of that pickle and of the bytes
of every storage. Under `torch.serialization.skip_data` it leaves the storages' bytes out, and their
places empty. So the plan is such a file, made where it takes next to no memory, together with the
list of storages, which `torch.save` gives to the pickler it was handed.

The storages' checksums in the archive are zero then. `torch.load` does not look at them; programs
for zip archives do.
"""

from __future__ import annotations

import collections
import contextlib
import mmap
import pickle
import struct
import types
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tune_sync.process import owned_name

_LOCAL_HEADER_BYTES = 30
_END = struct.Struct("<4s4H2LH")
_END_64_LOCATOR = struct.Struct("<4sLQL")
_END_64 = struct.Struct("<4sQ2H2L4Q")
# Most of what is pickled; not to ask about each makes a pickle of many tensors a third faster.
_NO_STORAGES = frozenset(
    {
        str, int, float, bool, tuple, list, dict, collections.OrderedDict, type, type(None),
        types.FunctionType, types.BuiltinFunctionType, torch.Tensor, torch.nn.Parameter,
    }
)  # fmt: skip
_NOT_HERE = 0xFFFFFFFF  # the number is in the 64-bit record


class CannotPlanError(Exception):
    """This object, or this PyTorch, is not for the fast way."""


@dataclass(frozen=True, slots=True)
class ArchiveRecord:
    """Where the bytes of a storage go."""

    storage: Any
    offset_bytes: int
    length_bytes: int


@dataclass(frozen=True, slots=True)
class ArchivePlan:
    """An archive without the bytes of its storages.

    Attributes:
        records: The storages and their places, in the order of the file.
        pieces: What is between them: place and bytes.
        directory: The end of the archive, which finds everything in it. Always at the end.
        directory_offset_bytes: Where `torch.save` put it.
    """

    records: list[ArchiveRecord]
    pieces: list[tuple[int, bytes]]
    directory: bytes
    directory_offset_bytes: int

    @property
    def size_bytes(self) -> int:
        return self.directory_offset_bytes + len(self.directory)

    def write_into(self, memory: mmap.mmap) -> None:
        """Write all but the storages' bytes, so that the archive ends where `memory` ends.

        Raises:
            CannotPlanError: It does not fit.
        """
        start_bytes = len(memory) - len(self.directory)
        moved = _moved(self.directory, self.directory_offset_bytes, start_bytes)
        for offset_bytes, piece in self.pieces:
            memory[offset_bytes : offset_bytes + len(piece)] = piece
        gap_bytes = start_bytes - self.directory_offset_bytes
        memory[self.directory_offset_bytes : start_bytes] = bytes(gap_bytes)
        memory[start_bytes:] = moved


def plan(obj: object, folder: Path, pickle_protocol: int) -> ArchivePlan:
    """Pickle `obj`, as it is now, and plan its archive. No storage is read.

    Args:
        obj: What to save.
        folder: A directory in memory, for a file that is mostly a hole.
        pickle_protocol: As for `torch.save`.

    Raises:
        CannotPlanError: Take the slow way.
        Exception: What pickling raised.
    """
    file = folder / owned_name()
    try:
        storages = _skeleton(obj, file, pickle_protocol)
        with file.open("rb") as opened, _mapped(opened.fileno()) as archive:
            return _read(archive, zipfile.ZipFile(opened), storages)
    finally:
        with contextlib.suppress(FileNotFoundError):
            file.unlink()


def _skeleton(obj: object, file: Path, pickle_protocol: int) -> dict[str, Any]:
    """Write the archive without its storages' bytes; return the storages by their keys."""
    storages: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:

        class Pickler(pickle.Pickler):
            """What `torch.save` derives its own pickler from."""

            def __init_subclass__(cls) -> None:
                ask = cls.persistent_id

                def persistent_id(self: Any, obj: Any) -> Any:
                    if type(obj) in _NO_STORAGES:
                        return None
                    answer = ask(self, obj)
                    if answer is not None:
                        storages[answer[2]] = obj
                    return answer

                cls.persistent_id = persistent_id  # type: ignore[method-assign]

            def dump(self, obj: Any) -> None:
                super().dump(obj)
                # Not before: an object may call `torch.save` itself to be pickled.
                stack.enter_context(torch.serialization.skip_data())

        module = types.SimpleNamespace(__name__="pickle", Pickler=Pickler)
        torch.save(obj, str(file), pickle_module=module, pickle_protocol=pickle_protocol)
        found = {key: _untyped(storage) for key, storage in storages.items()}
        storages.clear()  # a class is in a cycle: it would keep them until the next collection
    return found


def _untyped(storage: Any) -> Any:
    # Its public name for this warns that typed storages are on their way out.
    return storage._untyped_storage if isinstance(storage, torch.TypedStorage) else storage


@contextlib.contextmanager
def _mapped(descriptor: int) -> Iterator[mmap.mmap]:
    with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as archive:
        yield archive


def _read(archive: mmap.mmap, names: zipfile.ZipFile, storages: dict[str, Any]) -> ArchivePlan:
    records = []
    for info in names.infolist():
        key = info.filename.partition("/data/")[2]
        if not key:
            continue
        length_bytes = storages[key].nbytes() if key in storages else -1
        if length_bytes != info.file_size:
            raise CannotPlanError(f"{info.filename} is not a storage of {length_bytes} bytes")
        offset_bytes = _data_offset(archive, info.header_offset)
        records.append(ArchiveRecord(storages[key], offset_bytes, length_bytes))
    if len(records) != len(storages):
        raise CannotPlanError(f"{len(records)} places for {len(storages)} storages")
    start_bytes = names.start_dir
    return ArchivePlan(
        records, _between(archive, records, start_bytes), archive[start_bytes:], start_bytes
    )


def _data_offset(archive: mmap.mmap, header_bytes: int) -> int:
    name_bytes, extra_bytes = struct.unpack_from("<2H", archive, header_bytes + 26)
    return int(header_bytes + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes)


def _between(
    archive: mmap.mmap, records: list[ArchiveRecord], end_bytes: int
) -> list[tuple[int, bytes]]:
    pieces, at_bytes = [], 0
    for record in records:
        pieces.append((at_bytes, archive[at_bytes : record.offset_bytes]))
        at_bytes = record.offset_bytes + record.length_bytes
    return [*pieces, (at_bytes, archive[at_bytes:end_bytes])]


def _moved(directory: bytes, from_bytes: int, to_bytes: int) -> bytes:
    """The directory of an archive, as it is when it starts at `to_bytes`."""
    moved = bytearray(directory)
    end_at = len(moved) - _END.size
    signature, *middle, size_bytes, offset_bytes, comment = _END.unpack_from(moved, end_at)
    if signature != b"PK\5\6" or comment or to_bytes < from_bytes:
        raise CannotPlanError("the archive does not end as expected, or is too large")
    if offset_bytes != _NOT_HERE:
        if to_bytes >= _NOT_HERE:
            raise CannotPlanError("an archive of almost 4 GiB")
        _END.pack_into(moved, end_at, signature, *middle, size_bytes, to_bytes, comment)
    _move_64(moved, end_at - _END_64_LOCATOR.size, from_bytes, to_bytes)
    return bytes(moved)


def _move_64(moved: bytearray, locator_at: int, from_bytes: int, to_bytes: int) -> None:
    if locator_at < 0 or moved[locator_at : locator_at + 4] != b"PK\6\7":
        return
    signature, disk, end_bytes, disks = _END_64_LOCATOR.unpack_from(moved, locator_at)
    end_at = end_bytes - from_bytes
    _END_64_LOCATOR.pack_into(
        moved, locator_at, signature, disk, end_bytes - from_bytes + to_bytes, disks
    )
    *head, offset_bytes = _END_64.unpack_from(moved, end_at)
    if offset_bytes != from_bytes:
        raise CannotPlanError("the 64-bit end of the archive is not as expected")
    _END_64.pack_into(moved, end_at, *head, to_bytes)
