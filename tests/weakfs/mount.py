"""Mounts a directory of the machine once more, with faults."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.bed.errors import BedError

DEVICE = Path("/dev/fuse")
MET = ".met"  # behind the name of `Weakness.held_while`


@dataclass(frozen=True, slots=True)
class Weakness:
    """What a mount does otherwise than a local disk.

    Attributes:
        delay_s: What came through another mount is seen after this long.
        hidden_while: A file elsewhere. While it is there, nothing is seen that came through another
            mount after it.
        no_replace: Renaming over a file fails with EEXIST.
        no_fsync: fsync of files and directories fails with ENOTSUP.
        no_fsync_of_directories: Only that, with EINVAL.
        no_links: Hard links fail with EPERM.
        no_directory_rename: It fails with ENOTSUP.
        no_append: Writing anywhere but at a file's end fails with EPERM.
        stale: The first read and the first write of each file fail with ESTALE.
        held_open: A file that is removed while it is open stays as `.nfs…` until it is closed.
        full: Writes fail with ENOSPC.
        over_quota: Writes fail with EDQUOT.
        over_quota_while: A file elsewhere. While it is there, they do.
        held_while: A file elsewhere. While it is there, nobody who asks for an fsync of what has
            one of `held_in` in its path is answered. A file beside it (`MET`) holds a byte for each
            who has asked.
        held_in: Parts of paths.
        silent_while: A file elsewhere. While it is there, nobody is answered.
    """

    delay_s: float = 0.0
    hidden_while: str = ""
    no_replace: bool = False
    no_fsync: bool = False
    no_fsync_of_directories: bool = False
    no_links: bool = False
    no_directory_rename: bool = False
    no_append: bool = False
    stale: bool = False
    held_open: bool = False
    full: bool = False
    over_quota: bool = False
    over_quota_while: str = ""
    held_while: str = ""
    held_in: tuple[str, ...] = ()
    silent_while: str = ""


@contextmanager
def weak_mount(backing: Path, at: Path, weakness: Weakness) -> Iterator[Path]:
    """Show the directory `backing` at `at`, in this process's mount namespace.

    Raises:
        BedError: FUSE is not to be had here.
    """
    if not DEVICE.exists():
        raise BedError(f"there is no {DEVICE}: load the module fuse, or let this container have it")
    at.mkdir(parents=True, exist_ok=True)
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.weakfs.server", str(backing), str(at),
         json.dumps(asdict(weakness))],
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        if server.stdout.readline() != "ready\n":
            raise BedError(f"{at}: nothing can be mounted through FUSE here; needs root")
        yield at
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=False)
        server.kill()  # hosts that were started meanwhile may hold a copy of the mount
        server.wait()
        if server.stdout is not None:
            server.stdout.close()
