"""Where an experiment directory is, and what a run does there before its commits."""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import Protocol

from tune_sync import layout
from tune_sync.errors import (
    ConfigError,
    DamagedError,
    ExperimentExistsError,
    LeaseHeldError,
    PathRefusedError,
)
from tune_sync.homes.disk import make_directory
from tune_sync.homes.home import Home, LocalHome
from tune_sync.homes.kinds import read_if_there
from tune_sync.homes.lease import Holder, Lease, in_use, live_holder
from tune_sync.homes.lease_lock import locked
from tune_sync.homes.mounts import FSTAB, missing_mount
from tune_sync.homes.nested import refuse_nested
from tune_sync.homes.recorded import Commits, Reads, Snapshot, has_sealed
from tune_sync.homes.replacing import replace_file
from tune_sync.homes.store import LocalStore, Store, sync_with_all_above
from tune_sync.manifest import FORMAT_VERSION

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

# How often a directory may be moved aside while it is looked at.
LOOK_TRIES = 3


class RunLease(Protocol):
    """What a run needs of its lease. See `lease.Lease`."""

    def acquire(
        self, *, may_take: Callable[[Holder], bool] = ..., goes_on: Callable[[], bool] = ...
    ) -> None:
        """Take it, and keep it alive."""

    def check(self) -> None:
        """The fence."""

    def look(self) -> None:
        """Look once more, for `check_known`, if a look may wait for no request."""

    def check_known(self) -> None:
        """The fence, for each step of the control loop: waits for no disk and no bucket."""

    def release(self) -> None:
        """Give it back."""

    def leave(self) -> None:
        """Give it back, and let agents of this run write until the next one takes it."""

    def hand_back(self) -> None:
        """Give it back to the dead run that had it before, if there was one."""


class DriverHome(Home, Protocol):
    """A home as its own driver sees it.

    Attributes:
        publish_at_once: How many checkpoints are published, and how many deleted, at a time.
    """

    publish_at_once: int

    @property
    def committer(self) -> Commits:
        """Orders writes there."""

    @property
    def store(self) -> Reads:
        """Reads what is there."""

    def published_keys(self) -> Iterable[str]:
        """Keys of all checkpoints that have a manifest."""

    def snapshot(self) -> Snapshot:
        """What a restore looks at, by few requests."""


class Site(Protocol):
    """One experiment directory, as a run takes it.

    Attributes:
        where: Its path or URL, for messages.
        ways_out: What to do if an experiment is there already, beside restoring it.
    """

    where: str
    ways_out: str

    @property
    def root(self) -> PurePath:
        """Its path, as Ray names it."""

    def check(self) -> None:
        """Raise if it cannot be used. Within seconds."""

    def look(self) -> list[str]:
        """Names of what is at its top; none if it is not there.

        Raises:
            StoreError, OSError, ConfigError: It cannot be looked at.
        """

    def prepare(self) -> None:
        """Make it ours, or raise ConfigError if another version's format is there."""

    def put(self, key: str, data: bytes) -> None:
        """Replace a small file whole. It is durable on return."""

    def is_ours(self) -> bool:
        """Whether tune_sync has written there. Raises as `prepare` does for another version."""

    def holds_experiment(self) -> bool:
        """Whether one ran there: it has a state, a `trainer.pkl`, or a checkpoint.

        Also one that is not published: whoever takes the directory would publish it.
        """

    def live_holder(self) -> Holder | None:
        """Who has it now."""

    def move_aside(self, seen: Holder | None) -> str:
        """Give the earlier experiment a name of its own; returns it, or "" if another one just did.

        Args:
            seen: Who had it a moment ago, and may be taken it from.

        Raises:
            LeaseHeldError: Another run has begun there since.
        """

    def inside(self, key: str) -> Site:
        """A directory of it, as an experiment directory of its own, under the lease of this."""

    def home(self, owner: str, checkpoint_depth: int) -> DriverHome:
        """Its verbs, for the run `owner`."""

    def lease(self, owner: str) -> RunLease:
        """Its lease, for the run `owner`."""


class LocalSite:
    """A directory of this machine. See `Site`.

    Args:
        root: The experiment directory.
        leased_root: The directory with the lease, if it is another one; see `LocalHome`.
    """

    setting = "storage_path, or name"

    def __init__(self, root: Path, leased_root: Path | None = None) -> None:
        self._root, self._leased_root = root, leased_root
        self.look_again: Callable[[], None] = lambda: None  # see `taking`
        self.where = str(root)
        self.ways_out = (
            "choose another name, or move it aside with tune_sync.RunConfig(overwrite=True)"
        )

    @property
    def root(self) -> Path:
        """See `Site.root`."""
        return self._root

    def check(self) -> None:
        """See `Site.check`: what is not allowed. `prepare` writes, and says what else is wrong.

        Raises:
            StoreDeniedError: This user may not look at it.
            ConfigError: It is inside of, or around, another experiment.
        """
        store = LocalStore(self.root)
        store.setting = self.setting
        with store.room(self.root), suppress(FileNotFoundError, NotADirectoryError):
            self.look()
        self.refuse_nested()
        if point := missing_mount(self.root):
            logger.warning(
                "%s: nothing is mounted at %s, where %s has a file system; results go to the disk "
                "below, and are hidden once it is mounted", self.root, point, FSTAB,
            )  # fmt: skip

    def refuse_nested(self) -> None:
        """Raise ConfigError if this is a new one in, or around, the directory of another one."""
        if self._leased_root is None and not self.holds_experiment():
            refuse_nested(self.root, self.setting)

    def look(self) -> list[str]:
        """See `Site.look`. A link to what is not there is not nothing."""
        try:
            return os.listdir(self.root)
        except FileNotFoundError:
            if os.path.lexists(self.root):
                raise
            return []

    def prepare(self) -> None:
        """See `Site.prepare`."""
        store = LocalStore(self.root)
        with store.room(self.root):
            make_directory(self.root, self.setting)
        store.make_dir(layout.INTERNAL_DIR)
        file = self.root / layout.FORMAT_KEY
        with store.room(file):
            found = read_if_there(file)
            if not found:  # a power cut may leave it empty
                sync_with_all_above(self.root)
                self.put(layout.FORMAT_KEY, format_json())
                return
            check_format(found, str(file), self.where)

    def put(self, key: str, data: bytes) -> None:
        """See `Site.put`."""
        put_whole(LocalStore(self.root), key, data)

    def is_ours(self) -> bool:
        """See `Site.is_ours`."""
        file = self.root / layout.FORMAT_KEY
        with LocalStore(self.root).room(file):
            found = read_if_there(file)
            if found is not None:
                check_format(found, str(file), self.where)
            return found is not None

    def holds_experiment(self) -> bool:
        """See `Site.holds_experiment`."""
        return holds_experiment(self.root)

    def live_holder(self) -> Holder | None:
        """See `Site.live_holder`."""
        with LocalStore(self.root).room(self.root / layout.LEASE_KEY):
            return live_holder(self.root)

    def move_aside(self, seen: Holder | None) -> str:
        """See `Site.move_aside`."""
        for _ in range(LOOK_TRIES):
            with suppress(FileNotFoundError, FileExistsError):  # another one moves it just now
                return self._move_aside(seen)
        return self._move_aside(seen)

    def _move_aside(self, seen: Holder | None) -> str:
        if not self.holds_experiment():
            return ""
        now = time.strftime("%Y%m%d-%H%M%S")
        aside = self.root.with_name(f"{self.root.name}.{now}.{uuid.uuid4().hex[:4]}")
        lease = self.root / layout.LEASE_KEY
        with LocalStore(self.root).room(lease):
            lease.parent.mkdir(exist_ok=True)  # Ray alone makes none
            with locked(lease):  # whoever takes the lease now would else lose its directory
                if not self.holds_experiment():
                    return ""
                holder = self.live_holder()
                if holder is not None and (seen is None or holder.owner != seen.owner):
                    raise in_use(self.root, holder, time.time())
                self.root.rename(aside)
        return str(aside)

    def inside(self, key: str) -> Site:
        """See `Site.inside`. Raises PathRefusedError where a link leads elsewhere."""
        inner = self.root / layout.check_key(key)
        if os.path.realpath(inner) != os.path.join(os.path.realpath(self.root), key):
            raise PathRefusedError(f"{inner} is reached through a link; remove the link")
        return type(self)(inner, self._root)

    def home(self, owner: str, checkpoint_depth: int) -> LocalHome:
        """See `Site.home`."""
        return LocalHome(self.root, owner, checkpoint_depth, self._leased_root)

    def lease(self, owner: str) -> Lease:
        """See `Site.lease`."""
        return Lease(self.root, owner, look=self.look_again)


def put_whole(store: Store, key: str, data: bytes) -> None:
    """Replace a small file whole, also without the lease. It is durable on return.

    It is written where a recovery sweeps, as the process may be killed meanwhile.

    Raises:
        StoreError, OSError: It cannot be written.
    """
    fresh = f"{layout.INCOMING_DIR}/{uuid.uuid4().hex}"
    try:
        store.make_dir(layout.INCOMING_DIR)
        replace_file(store, key, data, fresh=fresh)
    except FileNotFoundError:  # another driver took the lease just now, and swept
        store.make_dir(layout.INCOMING_DIR)
        replace_file(store, key, data, fresh=fresh)


def holds_experiment(root: Path) -> bool:
    """See `Site.holds_experiment`, of the directory `root`."""
    for _ in range(LOOK_TRIES):
        with suppress(FileNotFoundError):  # it is being moved aside just now
            return _holds_experiment(root)
    return _holds_experiment(root)


def _holds_experiment(root: Path) -> bool:
    if any(root.glob("experiment_state-*.json")) or any(root.glob("trainer.pkl")):
        return True
    is_one = any((root / layout.MANIFESTS_DIR).glob("**/*.json"))
    return is_one or has_sealed(LocalStore(root))


def make_way(
    site: Site, on_existing: str, ways_out: str, may_take: Callable[[Holder], bool]
) -> None:
    """Move an experiment that is there aside, or refuse to start.

    Args:
        site: Where.
        on_existing: "error" or "move_aside"; or "resume", where it stays.
        ways_out: What to do about it, instead of what the site says; or "".
        may_take: Says of a live holder that its directory may be taken all the same.

    Raises:
        ExperimentExistsError: There is one, and `on_existing` is "error".
        LeaseHeldError: A live run has it.
    """
    if on_existing == "resume" or not site.holds_experiment():
        return
    root, holder = site.where, site.live_holder()
    if holder is not None and not may_take(holder):
        raise in_use(root, holder, time.time())
    if on_existing == "error":
        raise exists_already(site, ways_out)
    aside = site.move_aside(holder)
    if aside:
        logger.warning("moved the earlier experiment %s aside to %s", root, aside)


@contextmanager
def taking(site: Site) -> Iterator[Callable[[], None]]:
    """Within it an experiment directory is taken; gives what looks whether it is still that one.

    Raises:
        LeaseHeldError: What was there has been moved aside meanwhile.
    """
    # Nothing else is ever moved aside; and a bucket would have to be asked.
    was_there = isinstance(site, LocalSite) and site.holds_experiment()

    def look() -> None:
        if was_there and not site.holds_experiment():
            raise LeaseHeldError(
                f"{site.where} was moved aside just now, by another start with overwrite=True; "
                "what is to be resumed is beside it, under the name that this start has logged"
            )

    if isinstance(site, LocalSite):
        site.look_again = look
    try:
        yield look
    except FileNotFoundError:
        look()
        raise


def exists_already(site: Site, ways_out: str) -> ExperimentExistsError:
    """The error of a start where an experiment is; `ways_out` as in `make_way`."""
    default = f'resume it with tune.Tuner.restore("{{where}}", trainable=...), {site.ways_out}'
    ways = (ways_out or default).replace("{where}", str(site.where))
    return ExperimentExistsError(f"an experiment is already in {site.where}; {ways}")


def format_json() -> bytes:
    """What marks an experiment directory as ours."""
    return json.dumps({"format_version": FORMAT_VERSION}).encode()


def check_format(data: bytes, file: str, where: str) -> None:
    """Raise if the experiment directory `where` was written in a format that is not ours."""
    if not data:  # a power cut may leave it so; a run writes it anew
        return
    try:
        found = json.loads(data)["format_version"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise DamagedError(
            f"{file} is not readable: {error!r}; put an empty file in its place if you trust the "
            "rest"
        ) from error
    if found != FORMAT_VERSION:
        raise ConfigError(
            f"{where} was written by a tune_sync with format version {found!r}, this one has "
            f"{FORMAT_VERSION}; install the newer tune_sync, or choose another name"
        )
