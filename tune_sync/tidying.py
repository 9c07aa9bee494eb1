"""`cleanup`: for directories of crashed runs that are only read."""

from __future__ import annotations

import uuid
from pathlib import Path

from tune_sync import layout
from tune_sync.buckets.url import BucketUrl
from tune_sync.destination import parse_destination
from tune_sync.errors import ConfigError
from tune_sync.homes.bucket.site import BucketSite
from tune_sync.homes.inner_runs import recover_inner
from tune_sync.homes.lease import TIDYING
from tune_sync.homes.recorded import Recovery
from tune_sync.homes.sites import LocalSite, Site


def cleanup(path: str | Path) -> Recovery:
    """Complete or drop what a crashed run left half done in an experiment directory.

    A restore does the same by itself; this is for directories that are only read.

    Args:
        path: The experiment directory, on this machine, or its URL (`file://` is a directory).

    Returns:
        Which checkpoints were completed, and which were dropped, also of trainers inside of trials.

    Raises:
        FileNotFoundError: It is not there.
        ConfigError: Another version of tune_sync wrote it, or this is no URL that can be read, or
            no whole experiment.
        LeaseHeldError: A live run owns it.
        LeaseLostError: This was stopped for so long that another run took over; nothing more is
            changed.
    """
    return tidy(_site_at(path))


def tidy(site: Site) -> Recovery:
    """As `cleanup`, of the experiment at `site`."""
    if not site.is_ours():
        if site.home("", 1).store.info(layout.INTERNAL_DIR) is not None:
            raise ConfigError(
                f"{site.where} has no {layout.FORMAT_KEY}: it is that of a trainer inside of a "
                "trial; give the directory of the experiment, with which it is tidied"
            )
        if not site.home("", 1).list("", False) and isinstance(site, BucketSite):
            raise FileNotFoundError(f"nothing is in {site.where}; give the experiment's URL")
        return Recovery((), ())  # nothing of ours is there
    owner = f"{TIDYING}{uuid.uuid4().hex}"
    lease = site.lease(owner)
    lease.acquire()
    try:
        home = site.home(owner, 1)
        recovery: Recovery = home.committer.recover()
        return recovery + recover_inner(site, home, owner)
    finally:
        lease.hand_back()


def _site_at(path: str | Path) -> Site:
    place = parse_destination(path)
    if place.scheme:
        return BucketSite(BucketUrl(place.scheme, place.path))
    root = Path(place.path)
    if not root.is_dir():
        raise FileNotFoundError(
            f"{root} is not a directory; give the experiment's directory, or its URL, as in "
            "s3://bucket/path/exp"
        )
    return LocalSite(root)
