"""`cleanup`: for directories of crashed runs that are only read."""

from __future__ import annotations

import logging
import time
import uuid
from pathlib import Path

from tune_sync import layout
from tune_sync.behind.staging_sweep import LEFT_AGE_S
from tune_sync.buckets.url import BucketUrl
from tune_sync.destination import parse_destination
from tune_sync.errors import ConfigError
from tune_sync.homes.bucket.site import BucketSite
from tune_sync.homes.inner_runs import recover_inner
from tune_sync.homes.lease import TIDYING
from tune_sync.homes.look import no_experiment
from tune_sync.homes.recorded import Recovery
from tune_sync.homes.saved_train import drop_unnamed, warn_of_unnamed, was_record_removed
from tune_sync.homes.sites import LocalSite, Site

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver


def cleanup(path: str | Path) -> Recovery:
    """Complete or drop what a crashed run left half done in an experiment directory.

    A restore does the same by itself; this is for directories that are only read. With
    write-behind, nodes may still have parts of a checkpoint that others have sent: a restore asks
    them. This cannot, so it keeps such parts for as long as nodes keep the rest (`LEFT_AGE_S`).

    Args:
        path: The experiment directory, on this machine, or its URL (`file://` is a directory).

    Returns:
        Which checkpoints were completed, dropped and kept, also of trainers inside of trials.

    Raises:
        FileNotFoundError: It is not there, or no experiment of tune_sync's.
        ConfigError: Another version of tune_sync wrote it, or this is no URL that can be read, or
            no whole experiment.
        LeaseHeldError: A live run owns it, or one that is stopped on this machine.
        LeaseLostError: This was stopped for so long that another run took over; nothing more is
            changed.
    """
    return tidy(_site_at(path))


def tidy(site: Site) -> Recovery:
    """As `cleanup`, of the experiment at `site`."""
    if not site.is_ours():
        if (ours := site.home("", 1).store.info(layout.INTERNAL_DIR)) is not None:
            if not ours.is_dir:
                raise ConfigError(f"{site.where}/{layout.INTERNAL_DIR} is no directory; remove it")
            raise ConfigError(
                f"{site.where} has no {layout.FORMAT_KEY}: if it is that of a trainer inside of a "
                "trial, give the directory of the experiment, with which it is tidied; if it is an "
                "experiment, that file was lost: put an empty one there"
            )
        if not site.home("", 1).list("", False) and isinstance(site, BucketSite):
            raise FileNotFoundError(f"nothing is in {site.where}; give the experiment's URL")
        raise FileNotFoundError(no_experiment(site.home("", 1), site.where))
    owner = f"{TIDYING}{uuid.uuid4().hex}"
    lease = site.lease(owner)
    lease.acquire()
    try:
        home = site.home(owner, 1)
        has_lost_record = was_record_removed(home)
        if not has_lost_record:
            drop_unnamed(home, site.where)
        sent_since_s = time.time() - LEFT_AGE_S
        recovery = home.committer.recover(waits=True, sent_since_s=sent_since_s)
        recovery += recover_inner(site, home, owner)
        if not has_lost_record:
            warn_of_unnamed(home, site.where)
    finally:
        lease.hand_back()
    if recovery.kept:
        logger.warning(
            "%s: not whole, and kept: %s. Nodes may have the rest of what they sent. A restore "
            "asks them, and drops what stays incomplete; cleanup does %.0f days after it was "
            "sealed. Where a seal cannot be read, a warning above says what to do",
            site.where, ", ".join(recovery.kept), LEFT_AGE_S / 24 / 3600,
        )  # fmt: skip
    return recovery


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
