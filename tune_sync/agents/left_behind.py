"""Asks all nodes for what an earlier run of an experiment has left in their staging."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tune_sync import layout
from tune_sync.agents.home_agent import NAMESPACE
from tune_sync.agents.names import names_of_run
from tune_sync.behind.left_behind import LeftBehind, find, send_left
from tune_sync.behind.staging_roots import staging_roots
from tune_sync.homes.saved_state import TrialNames
from tune_sync.spec import Connector, Spec

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

SAY_S = 5.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a restored run still wants of what is left.

    Attributes:
        trials: Those that the saved state names.
        newest: Trial directory -> its newest checkpoint that is published.
    """

    trials: frozenset[TrialNames]
    newest: Mapping[str, str]

    def __call__(self, checkpoint: str) -> bool | None:
        """Whether it is further than what is published; None if it is of no trial of these."""
        trial = layout.parent(checkpoint)
        is_known = any(names.has(trial.partition("/")[0]) for names in self.trials)
        if trial not in self.newest and not is_known:
            return None
        return layout.by_age(checkpoint) > layout.by_age(self.newest.get(trial, ""))


def send_left_behind(spec: Spec, connector: Connector, wanted: Wanted) -> list[str]:
    """Have each node send what it has; returns the checkpoints, sealed and not published.

    What the agents of an earlier run have is theirs: see `node_agents.finish_earlier`.

    Args:
        spec: Of the restored run, which has the lease.
        connector: How to reach the destination.
        wanted: Says what is sent.
    """
    if ray.util.client.ray.is_connected():
        return []  # as for `finish_earlier`
    names = [str(found["name"]) for found in ray.util.list_named_actors(all_namespaces=True)
             if found["namespace"] == NAMESPACE]  # fmt: skip
    plain = replace(spec, options=spec.options.without_staging()).to_plain()
    running = {
        ray.remote(num_cpus=0, max_retries=0)(send_here)
        .options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
        .remote(plain, connector, wanted, names): node
        for node in (str(found["NodeID"]) for found in ray.nodes() if found["Alive"])
    }
    sent: list[str] = []
    while running:
        done, _ = ray.wait(list(running), timeout=SAY_S)
        if not done:
            logger.info(
                "%s: waiting for what an earlier run may have left on %d nodes",
                spec.where, len(running),
            )  # fmt: skip
        for ref in done:
            sent += _heard(running.pop(ref), ref)
    return sent


def _heard(node: str, ref: Any) -> list[str]:
    try:
        sent, why = ray.get(ref)
    except RayError as error:
        sent, why = [], str(error).splitlines()[0]
    if sent:
        logger.warning("node %s has sent what an earlier run had left there: %s", node,
                       ", ".join(sent))  # fmt: skip
    if why:
        logger.warning("node %s keeps what an earlier run has left there: %s", node, why)
    return list(sent)


def send_here(
    plain: Mapping[str, Any], connector: Connector, wanted: Wanted, names: Collection[str]
) -> tuple[list[str], str]:
    """What this node sends; returns the checkpoints, and why not all were sent."""
    spec, sent = Spec.from_plain(plain), []
    for left in (left for root in staging_roots(spec.options) for left in find(root)):
        if left.where != spec.where or left.owner == spec.owner or _agent_of(left) in names:
            continue
        if left.is_of_another(spec.begun_by):
            _name(left)
            continue
        try:
            with left.taken() as is_free:
                if is_free:
                    sent += send_left(left, connector.home(spec), wanted)
        except Exception as error:  # the destination does not answer, or this disk is broken
            return sent, f"{left.root}: {error}"
    return sent, ""


def _name(left: LeftBehind) -> None:
    """An experiment that was moved aside, or deleted, had this place before."""
    if trials := left.trials():
        logger.warning(
            "%s keeps what was reported in %s: it is of another experiment, which was in %s before",
            left.root, ", ".join(map(repr, trials)), left.where,
        )  # fmt: skip


def _agent_of(left: LeftBehind) -> str:
    return f"{names_of_run(left.where, left.owner)}{left.node}"
