"""Brings an experiment's state back to the driver's node, from copies that other nodes have."""

from __future__ import annotations

import logging
import os
import stat
import time
from contextlib import suppress
from pathlib import Path

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tune_sync.agents.home_agent import NAMESPACE
from tune_sync.agents.names import names_of
from tune_sync.behind.left_behind import find
from tune_sync.behind.staging_roots import staging_root
from tune_sync.behind.state_copy import STATE_DIR, put_state, read_copy
from tune_sync.homes.begun import note_begun
from tune_sync.homes.sites import LocalSite
from tune_sync.layout import is_state
from tune_sync.spec import Spec

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

# A node that does not answer has nothing to offer.
ANSWER_TIMEOUT_S = 60.0

# When it was renewed last, its files, and which experiment it is of: see `homes.begun`.
Copy = tuple[float, dict[str, bytes], str]
NOTHING: Copy = (0.0, {}, "")


def refill(spec: Spec) -> bool:
    """Put back the newest state that any node has a copy of; whether there was one.

    The checkpoints follow when the experiment is restored: see `left_on_nodes`. The agents of
    the dead run are ended first, as they would clean up behind it.

    Args:
        spec: Of the run that is to be resumed. Nothing is where it was.
    """
    copies = _offered(spec)
    renewed_s, files, begun_by = max(copies, default=NOTHING, key=lambda copy: copy[0])
    if not files:
        return False
    _end_agents(spec.where)
    if begun_by:  # what nodes have of one that had this place before stays out
        site = LocalSite(Path(spec.where))
        site.prepare()
        note_begun(site, begun_by)
    # The state goes last: what has none is not taken for an experiment.
    for name in sorted(files, key=is_state):
        put_state(Path(spec.where), name, files[name])
    logger.warning(
        "%s was empty; its state of %.0f s ago was brought back from another node, and trials go "
        "on from their newest checkpoints that nodes have", spec.where, time.time() - renewed_s,
    )  # fmt: skip
    return True


def _offered(spec: Spec) -> list[Copy]:
    offers = {
        ray.remote(num_cpus=0, max_retries=0)(offer_here)
        .options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
        .remote(spec.where, spec.options.staging_dir): node
        for node in (str(found["NodeID"]) for found in ray.nodes() if found["Alive"])
    }
    done, late = ray.wait(list(offers), num_returns=len(offers), timeout=ANSWER_TIMEOUT_S)
    for offer in late:
        logger.warning(
            "node %s has not told within %.0f s what it has of %s: that is left out",
            offers[offer], ANSWER_TIMEOUT_S, spec.where,
        )  # fmt: skip
    copies: list[Copy] = []
    for offer in done:
        try:
            copies.append(ray.get(offer))
        except RayError as error:
            logger.warning(
                "node %s cannot tell what it has of %s: %s", offers[offer], spec.where, error
            )
    return copies


def offer_here(where: str, staging_dir: str) -> Copy:
    """The newest copy of an experiment's state on this node; with no files if there is none.

    What another user has put there does not count: Ray unpickles what it restores from.
    """
    found = [left for left in find(staging_root(staging_dir)) if left.where == where]
    own = [left for left in found if _is_own(left.root / STATE_DIR)]
    copies = [(*read_copy(left.root), left.begun_by) for left in own]
    return max(copies, default=NOTHING, key=lambda copy: copy[0])


def _is_own(directory: Path) -> bool:
    if not directory.is_dir():
        return False
    found = directory.stat()
    return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _end_agents(where: str) -> None:
    for found in ray.util.list_named_actors(all_namespaces=True):
        if found["namespace"] == NAMESPACE and str(found["name"]).startswith(names_of(where)):
            with suppress(ValueError, RayError):
                agent = ray.get_actor(str(found["name"]), namespace=NAMESPACE)
                ray.kill(agent, no_restart=True)
