"""Serves one mount: `python -m tests.weakfs.server BACKING MOUNT_POINT WEAKNESS`, as root.

One thread, but for who is held, and nothing is cached by the kernel: it asks for each name anew,
as an NFS client does that does not trust its cache.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import stat
import sys
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path

from tests.weakfs import protocol as p
from tests.weakfs.mount import DEVICE, MET, Weakness
from tests.weakfs.protocol import Op

ROOT = 1
LOOK_S = 0.02
HELD = ".nfs"


def fail(code: int) -> OSError:
    return OSError(code, os.strerror(code))


def is_there(path: str) -> bool:
    return bool(path) and os.path.exists(path)


class Server:
    """One mounted file system over a directory. Methods are named after requests."""

    def __init__(self, backing: Path, weakness: Weakness) -> None:
        self.weak = weakness
        self.paths = {ROOT: str(backing)}
        self.ids: dict[tuple[str, int], int] = {}
        self.shown: set[int] = set()  # inodes that were seen, or made, through this mount
        self.stale: set[tuple[str, int]] = set()
        self.open: dict[int, tuple[int, str]] = {}  # descriptor -> its own number, its path
        self.held: set[str] = set()
        self.listed: dict[int, list[tuple[str, os.stat_result]]] = {}

    # -- names -----------------------------------------------------------------------------

    def see(self, path: str) -> os.stat_result:
        """What is at a path, if this mount shows it already."""
        found = os.lstat(path)
        fresh = time.time() - found.st_ctime < self.weak.delay_s or self.is_hidden(found)
        if fresh and found.st_ino not in self.shown and path != self.paths[ROOT]:
            raise fail(errno.ENOENT)
        self.shown.add(found.st_ino)
        return found

    def is_hidden(self, found: os.stat_result) -> bool:
        """Whether it came after the file that hides such things, and that is still there."""
        try:
            return bool(self.weak.hidden_while) and (
                found.st_ctime_ns > os.lstat(self.weak.hidden_while).st_ctime_ns
            )
        except FileNotFoundError:
            return False

    def entry(self, path: str, *, mine: bool = False) -> bytes:
        if mine:
            self.shown.add(os.lstat(path).st_ino)
        found = self.see(path)
        node = self.ids.setdefault((path, found.st_ino), len(self.ids) + ROOT + 1)
        self.paths[node] = path
        return p.ENTRY.pack(node, 0, 0, 0, 0, 0) + p.attr(found, found.st_ino)

    def below(self, node: int, name: str) -> str:
        return f"{self.paths[node]}/{name}"

    # -- requests on names -----------------------------------------------------------------

    def lookup(self, node: int, data: bytes) -> bytes:
        return self.entry(self.below(node, p.names(data)[0]))

    def getattr(self, node: int, data: bytes) -> bytes:
        by_handle = data and int.from_bytes(data[:4], "little") & 1
        handle = int.from_bytes(data[8:16], "little") if by_handle else -1
        found = os.fstat(handle) if handle in self.open else os.lstat(self.paths[node])
        return p.ATTR_OUT.pack(0, 0, 0) + p.attr(found, found.st_ino)

    def setattr(self, node: int, data: bytes) -> bytes:
        valid, _, _, size, _, atime, mtime, *_rest, mode, _, uid, gid, _ = p.SETATTR_IN.unpack_from(
            data
        )
        path = self.paths[node]
        if valid & 1:
            os.chmod(path, stat.S_IMODE(mode))
        if valid & 6:
            os.chown(path, uid if valid & 2 else -1, gid if valid & 4 else -1)
        if valid & 8:
            os.truncate(path, size)
        if valid & 48:
            os.utime(path, (atime, mtime) if not valid & 384 else None)
        return self.getattr(node, b"")

    def readlink(self, node: int, data: bytes) -> bytes:
        return os.fsencode(os.readlink(self.paths[node]))

    def symlink(self, node: int, data: bytes) -> bytes:
        name, target = p.names(data)
        os.symlink(target, self.below(node, name))
        return self.entry(self.below(node, name), mine=True)

    def mkdir(self, node: int, data: bytes) -> bytes:
        path = self.below(node, p.names(data[8:])[0])
        os.mkdir(path, int.from_bytes(data[:4], "little"))
        return self.entry(path, mine=True)

    def unlink(self, node: int, data: bytes) -> bytes:
        path = self.below(node, p.names(data)[0])
        holders = [f for f, (_, opened) in self.open.items() if opened == path]
        if not (self.weak.held_open and holders):
            os.unlink(path)
            return b""
        hidden = self.below(node, HELD + uuid.uuid4().hex[:16])
        os.rename(path, hidden)
        self.held.add(hidden)
        self.open.update((f, (self.open[f][0], hidden)) for f in holders)
        return b""

    def rmdir(self, node: int, data: bytes) -> bytes:
        os.rmdir(self.below(node, p.names(data)[0]))
        return b""

    def rename(self, node: int, data: bytes, header_size: int = 8) -> bytes:
        old_name, new_name = p.names(data[header_size:])
        old, new = (
            self.below(node, old_name),
            self.below(int.from_bytes(data[:8], "little"), new_name),
        )
        if self.weak.no_replace and os.path.lexists(new):
            raise fail(errno.EEXIST)
        if self.weak.no_directory_rename and os.path.isdir(old):
            raise fail(errno.ENOTSUP)
        os.rename(old, new)
        self.shown.add(os.lstat(new).st_ino)
        below = [path for path in self.paths.values() if f"{path}/".startswith(old + "/")]
        moved = {path: new + path[len(old) :] for path in below}
        self.paths = {number: moved.get(path, path) for number, path in self.paths.items()}
        self.open = {f: (ino, moved.get(path, path)) for f, (ino, path) in self.open.items()}
        return b""

    def rename2(self, node: int, data: bytes) -> bytes:
        return self.rename(node, data, 16)

    def link(self, node: int, data: bytes) -> bytes:
        if self.weak.no_links:
            raise fail(errno.EPERM)
        path = self.below(node, p.names(data[8:])[0])
        os.link(self.paths[int.from_bytes(data[:8], "little")], path)
        return self.entry(path, mine=True)

    def statfs(self, node: int, data: bytes) -> bytes:
        found = os.statvfs(self.paths[ROOT])
        return p.STATFS_OUT.pack(
            found.f_blocks, found.f_bfree, found.f_bavail, found.f_files, found.f_ffree,
            found.f_bsize, found.f_namemax, found.f_frsize, 0,
        )  # fmt: skip

    # -- requests on open files ------------------------------------------------------------

    def opened(self, path: str, flags: int, mode: int = 0) -> bytes:
        # The kernel has no use for append and direct I/O here: it gives offsets.
        descriptor = os.open(path, flags & ~(os.O_APPEND | os.O_DIRECT | os.O_NOFOLLOW), mode)
        self.open[descriptor] = (os.fstat(descriptor).st_ino, path)
        return p.OPEN_OUT.pack(descriptor, 0, 0)

    def open_(self, node: int, data: bytes) -> bytes:
        return self.opened(self.paths[node], int.from_bytes(data[:4], "little"))

    def create(self, node: int, data: bytes) -> bytes:
        path = self.below(node, p.names(data[16:])[0])
        flags, mode = int.from_bytes(data[:4], "little"), int.from_bytes(data[4:8], "little")
        answer = self.opened(path, flags | os.O_CREAT, stat.S_IMODE(mode))
        return self.entry(path, mine=True) + answer

    def meet_stale(self, what: str, descriptor: int) -> None:
        seen = (what, self.open[descriptor][0])
        if self.weak.stale and seen not in self.stale:
            self.stale.add(seen)
            raise fail(errno.ESTALE)

    def read(self, node: int, data: bytes) -> bytes:
        descriptor, offset, size, _ = p.IO_IN.unpack_from(data)
        self.meet_stale("read", descriptor)
        return os.pread(descriptor, size, offset)

    def write(self, node: int, data: bytes) -> bytes:
        descriptor, offset, size, _ = p.IO_IN.unpack_from(data)
        self.meet_stale("write", descriptor)
        if self.weak.full:
            raise fail(errno.ENOSPC)
        if self.weak.over_quota or is_there(self.weak.over_quota_while):
            raise fail(errno.EDQUOT)
        if self.weak.no_append and offset != os.fstat(descriptor).st_size:
            raise fail(errno.EPERM)
        written = os.pwrite(descriptor, data[p.IO_SIZE : p.IO_SIZE + size], offset)
        return written.to_bytes(8, "little")

    def flush(self, node: int, data: bytes) -> bytes:
        return b""

    def release(self, node: int, data: bytes) -> bytes:
        descriptor = int.from_bytes(data[:8], "little")
        _, path = self.open.pop(descriptor)
        os.close(descriptor)
        if path in self.held and not any(opened == path for _, opened in self.open.values()):
            self.held.remove(path)
            os.unlink(path)
        return b""

    def fsync(self, node: int, data: bytes) -> bytes:
        if self.weak.no_fsync:
            raise fail(errno.ENOTSUP)
        return b""  # nothing is synced, which takes long: no test cuts the power

    # -- requests on directories -----------------------------------------------------------

    def opendir(self, node: int, data: bytes) -> bytes:
        number = max(self.listed, default=0) + 1
        self.listed[number] = []
        for name in sorted(os.listdir(self.paths[node])):
            try:
                self.listed[number].append((name, self.see(self.below(node, name))))
            except FileNotFoundError:
                continue
        return p.OPEN_OUT.pack(number, 0, 0)

    def readdir(self, node: int, data: bytes) -> bytes:
        number, offset, size, _ = p.IO_IN.unpack_from(data)
        found = b""
        for index, (name, info) in enumerate(self.listed[number][offset:], offset + 1):
            entry = p.directory_entry(info.st_ino, index, os.fsencode(name), info.st_mode)
            if len(found) + len(entry) > size:
                break
            found += entry
        return found

    def releasedir(self, node: int, data: bytes) -> bytes:
        del self.listed[int.from_bytes(data[:8], "little")]
        return b""

    def fsyncdir(self, node: int, data: bytes) -> bytes:
        if self.weak.no_fsync_of_directories:
            raise fail(errno.EINVAL)
        if self.weak.no_fsync:
            raise fail(errno.ENOTSUP)
        return b""

    def init(self, node: int, data: bytes) -> bytes:
        _, _, readahead, flags = p.INIT_IN.unpack_from(data)
        return p.INIT_OUT.pack(
            p.MAJOR, p.MINOR, readahead, flags & p.FLAGS, 16, 12, p.MAX_WRITE_BYTES, 1, 256, 0
        )

    def is_held(self, opcode: int, node: int) -> bool:
        """Whether a request is not to be answered for now."""
        held = opcode in (Op.FSYNC, Op.FSYNCDIR) and is_there(self.weak.held_while)
        return held and any(part in self.paths.get(node, "") for part in self.weak.held_in)

    def wait_and_reply(self, device: int, request: bytes) -> None:
        """Answer an fsync once what holds it is gone."""
        with open(self.weak.held_while + MET, "a") as met:
            met.write(".")
        while is_there(self.weak.held_while):
            time.sleep(LOOK_S)
        reply(device, request, 0, b"")

    def answer(self, opcode: int, node: int, data: bytes) -> bytes:
        """What a request comes to. Raises OSError for the rest of them, too."""
        try:
            name = Op(opcode).name.lower()
        except ValueError:
            raise fail(errno.ENOSYS) from None
        method = getattr(self, "open_" if name == "open" else name, None)
        if method is None:
            raise fail(errno.ENOSYS)
        try:
            answer: bytes = method(node, data)
        except KeyError:  # forgotten, as what it was is gone
            raise fail(errno.ESTALE) from None
        return answer


def serve(device: int, server: Server) -> None:
    """Answer until the file system is unmounted."""
    while True:
        try:
            request = os.read(device, p.MAX_WRITE_BYTES + 4096)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return
            if error.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                continue
            raise
        while is_there(server.weak.silent_while):
            time.sleep(LOOK_S)
        _, opcode, _, node, *_ = p.IN_HEADER.unpack_from(request)
        if opcode in (Op.FORGET, Op.BATCH_FORGET):
            continue
        if server.is_held(opcode, node):
            threading.Thread(target=server.wait_and_reply, args=(device, request)).start()
            continue
        code, data = 0, b""
        try:
            data = server.answer(opcode, node, request[p.IN_HEADER.size :])
        except OSError as error:
            code = -(error.errno or errno.EIO)
        reply(device, request, code, data)


def reply(device: int, request: bytes, code: int, data: bytes) -> None:
    """Answer a request: with data, or a negative error number."""
    _, _, unique, *_ = p.IN_HEADER.unpack_from(request)
    with suppress(FileNotFoundError):  # whoever asked is gone
        os.write(device, p.OUT_HEADER.pack(p.OUT_HEADER.size + len(data), code, unique) + data)


def mount(at: str) -> int:
    """Mount through FUSE; returns the descriptor that requests come from."""
    device = os.open(DEVICE, os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"weakfs", os.fsencode(at), b"fuse", 0, options.encode()):
        raise fail(ctypes.get_errno())
    return device


if __name__ == "__main__":
    os.umask(0)
    backing_, at_, weakness_ = sys.argv[1:]
    device_ = mount(at_)
    print("ready", flush=True)
    serve(device_, Server(Path(backing_), Weakness(**json.loads(weakness_))))
