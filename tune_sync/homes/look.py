"""What is at a destination, seen from outside: by few requests, and without a lease. Read only."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tune_sync import layout
from tune_sync.homes.bucket import lease as bucket_lease
from tune_sync.homes.bucket.home import BucketHome
from tune_sync.homes.home import Home, LocalHome
from tune_sync.homes.lease import LEASE_TTL_S, Holder, holder_from_json
from tune_sync.homes.nested import experiments_near
from tune_sync.homes.sites import check_format
from tune_sync.homes.store import Info

# A lease is replaced every few seconds: one that cannot be read is whole at the next look.
LOOKS_COUNT = 3
# Of directories in a bucket, each a request or two; and of the experiments among them.
ASKED_COUNT, NAMED_COUNT = 10, 2


@dataclass(frozen=True, slots=True)
class Stored:
    """What is at a destination.

    Attributes:
        count: Checkpoints that are published.
        newest_s: When the last of them was, in seconds since the epoch; None if there is none.
        holder: Who holds the lease; None if nobody does.
        is_live: Whether the holder is alive, as far as its lease tells.
    """

    count: int
    newest_s: float | None
    holder: Holder | None
    is_live: bool


def look_at(home: Home, where: str, clock: Callable[[], float] = time.time) -> Stored:
    """Look at an experiment directory.

    Args:
        home: The directory.
        where: Its path or URL, for messages.
        clock: Seconds since the epoch.

    Raises:
        FileNotFoundError: tune_sync has not written there.
        ConfigError, DamagedError: Another version has.
        StoreError, OSError: It cannot be read now.
    """
    mark = _read(home, layout.FORMAT_KEY)
    if mark is None:
        raise FileNotFoundError(no_experiment(home, where))
    check_format(mark, f"{where}/{layout.FORMAT_KEY}", where)
    holder = _holder(home)
    manifests = list(_manifests(home))
    newest_s = max((found.modified_s for found in manifests), default=None)
    return Stored(len(manifests), newest_s, holder, _is_live(home, holder, clock()))


def no_experiment(home: Home, where: str) -> str:
    """That there is none, in words, and the ways out: which experiments are near."""
    says = f"{where} holds no experiment that tune_sync has written"
    ours = home.info(layout.INTERNAL_DIR)
    if ours is not None and ours.is_dir:
        return f"{says}; or its {layout.FORMAT_KEY} was lost: then put an empty file there"
    near = " or ".join(itertools.islice(_near(home, where), NAMED_COUNT))
    return f"{says}; {f'is {near} meant?' if near else 'correct the path or URL'}"


def _near(home: Home, where: str) -> Iterator[str]:
    if isinstance(home, LocalHome):
        yield from map(str, experiments_near(home.root))
        return
    below = [entry.key for entry in home.list("", False) if entry.is_dir]
    for key in below[:ASKED_COUNT]:
        if home.info(f"{key}/{layout.FORMAT_KEY}") is not None:
            yield f"{where}/{key}"


def _holder(home: Home) -> Holder | None:
    """Who has the lease; None if it has gone, or cannot be read at several looks."""
    for _ in range(LOOKS_COUNT):
        lease = _read(home, layout.LEASE_KEY)
        holder = holder_from_json(lease) if lease is not None else None
        if lease is None or holder is not None:
            return holder
    return None


def _is_live(home: Home, holder: Holder | None, now_s: float) -> bool:
    if holder is None or holder.is_surely_dead:
        return False
    ttl_s = bucket_lease.BUCKET_LEASE_TTL_S if isinstance(home, BucketHome) else LEASE_TTL_S
    return holder.age_s(now_s) < ttl_s


def _read(home: Home, key: str) -> bytes | None:
    found = home.info(key)
    if found is None:
        return None
    try:
        return bytes(home.read(key, 0, found.size_bytes))
    except FileNotFoundError:  # the run has just ended
        return None


def _manifests(home: Home) -> Iterator[Info]:
    """What says of a checkpoint that it is published."""
    if isinstance(home, BucketHome):  # one listing
        found = home.store.tree(layout.MANIFESTS_DIR)
    else:
        found = home.list(layout.MANIFESTS_DIR, True)
    return (entry for entry in found if entry.key.endswith(".json"))
