"""Files of this machine, compared with what manifests and seals say of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import xxhash

from tune_sync.errors import DamagedError
from tune_sync.manifest import FileEntry

# Made anew for each file, of which there may be thousands: 32 MiB of it took 24 ms each.
READ_BYTES = 1 << 20


def digest_of(data: bytes | bytearray | memoryview) -> str:
    """The digest that manifests hold, of bytes in memory."""
    return xxhash.xxh3_128_hexdigest(data)


def check_digest(key: str, data: memoryview, digest: str) -> None:
    """Raise DamagedError if `data` is not what its sender saw."""
    if digest_of(data) != digest:
        raise DamagedError(f"{key}: {len(data)} bytes arrived damaged; report the checkpoint again")


def digest_of_file(file: Path, moved: Callable[[], object] = lambda: None) -> str:
    """The digest that manifests and seals hold, of a file here; `moved` is called as it is read."""
    digest, buffer = xxhash.xxh3_128(), memoryview(bytearray(READ_BYTES))
    with open(file, "rb", buffering=0) as source:
        while size_bytes := source.readinto(buffer):
            digest.update(buffer[:size_bytes])
            moved()
    return digest.hexdigest()


def first_different(directory: Path, files: Iterable[FileEntry]) -> str:
    """What is wrong with the first file that is not as it was stored; "" if all are."""
    for file in files:
        found = directory / file.path
        if not found.is_file() or found.stat().st_size != file.size_bytes:
            return f"{file.path} is missing, or has another length"
        if digest_of_file(found) != file.digest:
            return f"{file.path} has other bytes"
    return ""
