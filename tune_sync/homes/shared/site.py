"""A directory that all nodes share: what it has to be able to do, tried before a run starts.

| ability | without it |
|---|---|
| writing into the middle of a file, rename of a file, over another one, of a directory | refused |
| locks (flock) | refused: two runs could take one directory |
| fsync of files | works, with a warning: a crash of the file server may lose what was reported |
| fsync of directories, hard links | works; hard links become copies |
| seeing at once what another node did | works, if it takes less than `disk.VISIBLE_WITHIN_S` |
"""

from __future__ import annotations

import errno
import fcntl
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tune_sync.errors import ConfigError
from tune_sync.homes.disk import make_directory, remove_tree
from tune_sync.homes.mounts import FSTAB, missing_mount, mount_of, unmounted_place
from tune_sync.homes.shared.home import SETTING, SharedHome
from tune_sync.homes.sites import LocalSite
from tune_sync.homes.store import LocalStore
from tune_sync.process import is_orphan, owned_name

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

# What the look at a directory is made in, beside the experiments. It takes seconds.
PROBE = ".tune_sync-probe-"
PROBE_AGE_S = 3600.0

# These say something about room or permission, not about the kind of file system: the store's own
# errors, with what to do about them, are better.
_OTHER_TROUBLE = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.ENOENT, errno.ENOTDIR, errno.EIO}
)


class SharedSite(LocalSite):
    """An experiment directory that all nodes see. See `sites.Site`."""

    setting = "upload_dir, or name"

    def check(self) -> None:
        """See `Site.check`.

        Raises:
            ConfigError: The file system lacks an ability that is needed, or is not mounted, or
                this is inside of, or around, another experiment; names it.
        """
        self.refuse_nested()
        if not self.holds_experiment():  # what is there is where it is, whatever is mounted
            check_mounted(self.root.parent)
            _warn_of_unmounted_place(self.root.parent)
        check_abilities(self.root.parent)

    def home(self, owner: str, checkpoint_depth: int) -> SharedHome:
        """See `Site.home`."""
        return SharedHome(self.root, owner, checkpoint_depth, leased_root=self._leased_root)


def check_mounted(directory: Path) -> None:
    """Refuse a directory that would be made on the disk below a mount that is not there.

    Raises:
        ConfigError: `FSTAB` wants a mount that is not there; or where it would be by custom there
            is no directory.
    """
    if point := missing_mount(directory):
        raise ConfigError(
            f"{directory}: nothing is mounted at {point}, where {FSTAB} has a file system, and "
            f"results would go to the disk below; mount it, or give another {SETTING}"
        )
    point = unmounted_place(directory)
    if point and not Path(point).exists():
        raise ConfigError(
            f"{directory}: there is no {point}, so that nothing is mounted there; mount what the "
            "nodes share. If a directory of this node's own disk is meant, make it first: "
            f"mkdir {point}"
        )


def _warn_of_unmounted_place(directory: Path) -> None:
    """Somebody has made it, and may have meant it so."""
    if point := unmounted_place(directory):
        logger.warning(
            "%s is on this node's own disk (%s), as nothing is mounted at %s; if other nodes are "
            "to see it, stop, mount it, and start anew", directory, mount_of(directory), point,
        )  # fmt: skip


def check_abilities(directory: Path) -> None:
    """Try what a directory has to be able to do, in a directory of its own below it.

    Raises:
        ConfigError: It cannot be made, or cannot do it; names what is missing.
        StoreFullError, OSError: It cannot be written to at all.
    """
    name, store = f"{PROBE}{owned_name()}", LocalStore(directory)
    store.setting = SETTING
    with store.room(directory):  # which is what has to be mended, and not the probe's
        make_directory(directory, SETTING)
        _sweep_probes(directory)
        Path(directory, name).mkdir()
    probe = LocalStore(directory / name)
    try:
        for ability, attempt in _ABILITIES.items():
            try:
                works = attempt(probe)
            except OSError as error:
                if error.errno in _OTHER_TROUBLE:
                    raise
                raise _lacks(directory, ability, str(error.__cause__ or error)) from error
            if not works:
                raise _lacks(directory, ability, "the result is another one than on a local disk")
    finally:
        store.remove_tree(name)


def _sweep_probes(directory: Path) -> None:
    """Remove what a kill has left of an earlier look: by a process of this machine, or long ago."""
    for probe in directory.glob(f"{PROBE}*"):
        with suppress(OSError):  # who may not remove it is not kept from starting
            if is_orphan(probe.name) or time.time() - probe.stat().st_mtime > PROBE_AGE_S:
                remove_tree(probe)


def _lacks(directory: Path, ability: str, why: str) -> ConfigError:
    return ConfigError(
        f"{directory} cannot be shared by the nodes of a run: its file system lacks {ability} "
        f"({why}); mount it so that it has that, choose another directory, or leave upload_dir "
        "out: tune_sync needs no shared storage"
    )


def _writes_in_parts(probe: LocalStore) -> bool:
    probe.write_at("parts", 4, b"last")
    probe.write_at("parts", 0, b"1st ")
    return probe.read("parts") == b"1st last"


def _makes_durable(probe: LocalStore) -> bool:
    probe.sync("parts")
    probe.sync("")
    return True


def _renames_files(probe: LocalStore) -> bool:
    probe.write_at("new", 0, b"new")
    probe.rename("new", "renamed")
    return probe.read("renamed") == b"new" and probe.info("new") is None


def _replaces_files(probe: LocalStore) -> bool:
    probe.write_at("newer", 0, b"newer")
    probe.rename("newer", "renamed")
    return probe.read("renamed") == b"newer"


def _renames_directories(probe: LocalStore) -> bool:
    probe.make_dir("from/below")
    probe.write_at("from/below/file", 0, b"file")
    probe.make_dir("to")
    probe.rename("from", "to/here")
    return probe.read("to/here/below/file") == b"file" and probe.info("from") is None


def _locks(probe: LocalStore) -> bool:
    path = probe.path("renamed")
    with open(path, "a") as mine, open(path, "a") as other:
        fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def _removes(probe: LocalStore) -> bool:
    probe.remove("renamed")
    probe.remove_tree("to")
    return probe.info("renamed") is None and probe.info("to") is None


_ABILITIES: dict[str, Callable[[LocalStore], bool]] = {
    "writing into the middle of a file": _writes_in_parts,
    "making files durable (fsync)": _makes_durable,
    "renaming a file": _renames_files,
    "renaming a file over another one": _replaces_files,
    "renaming a directory": _renames_directories,
    "locks on files (flock; NFS: its lock service, or the mount option local_lock=flock)": _locks,
    "removing files and directories": _removes,
}

__all__ = ["SharedSite", "check_abilities", "check_mounted"]
