"""The part of the kernel's FUSE protocol that a test needs: numbers and structs.

From `include/uapi/linux/fuse.h`; version 7.31 is spoken.
"""

from __future__ import annotations

import enum
import os
import struct

MAJOR, MINOR = 7, 31
MAX_WRITE_BYTES = 1 << 20
# Asynchronous reads, O_TRUNC in open, big writes, no stale pages, and as many pages as that takes.
FLAGS = 1 << 0 | 1 << 3 | 1 << 5 | 1 << 12 | 1 << 22

IN_HEADER = struct.Struct("<IIQQIIIHH")
OUT_HEADER = struct.Struct("<IiQ")
INIT_IN = struct.Struct("<IIII")
INIT_OUT = struct.Struct("<IIIIHHIIHH32x")
ATTR = struct.Struct("<QQQQQQIIIIIIIIII")
ENTRY = struct.Struct("<QQQQII")
ATTR_OUT = struct.Struct("<QII")
OPEN_OUT = struct.Struct("<QII")
SETATTR_IN = struct.Struct("<IIQQQQQQIIIIIIII")
IO_IN = struct.Struct("<QQII")  # then a lock owner and flags
IO_SIZE = 40
STATFS_OUT = struct.Struct("<QQQQQIIII24x")
DIRENT = struct.Struct("<QQII")


class Op(enum.IntEnum):
    """Requests."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    CREATE = 35
    DESTROY = 38
    BATCH_FORGET = 42
    RENAME2 = 45


def attr(found: os.stat_result, ino: int) -> bytes:
    """A file's attributes."""
    times = (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)
    return ATTR.pack(
        ino, found.st_size, found.st_blocks, *(t // 10**9 for t in times),
        *(t % 10**9 for t in times), found.st_mode, found.st_nlink, found.st_uid, found.st_gid,
        found.st_rdev, 4096, 0,
    )  # fmt: skip


def directory_entry(ino: int, offset: int, name: bytes, mode: int) -> bytes:
    """One entry of a directory, padded."""
    head = DIRENT.pack(ino, offset, len(name), mode >> 12)
    return (head + name).ljust(-(-(len(head) + len(name)) // 8) * 8, b"\0")


def names(data: bytes) -> list[str]:
    """The names, each with a NUL behind it, that a request ends with."""
    return [os.fsdecode(name) for name in data.split(b"\0")[:-1]]
