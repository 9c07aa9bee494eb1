"""Asks all nodes for what an earlier run of an experiment has left in their staging."""

from __future__ import annotations

import logging
import posixpath
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from os.path import realpath
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tune_sync import layout
from tune_sync.agents.home_agent import NAMESPACE, START_TIMEOUT_S
from tune_sync.agents.names import names_of_run
from tune_sync.behind.left_behind import LeftBehind, find, send_left
from tune_sync.behind.staging_roots import staging_roots
from tune_sync.buckets.url import is_bucket_url
from tune_sync.homes.saved_state import TrialNames
from tune_sync.spec import Connector, Spec

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

LOOK_S, SAY_S = 0.5, 5.0
# What a call on a node may take beyond `sync_timeout`, and say itself what is wrong.
LATE_S = 30.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a restored run still wants of what is left.

    Attributes:
        trials: Those that the saved state names.
        newest: Trial directory -> its newest checkpoint that is published.
        published: All that are.
        keeps_all: Whether nothing deletes checkpoints: older ones that are not there are wanted.
    """

    trials: frozenset[TrialNames]
    newest: Mapping[str, str]
    published: frozenset[str] = frozenset()
    keeps_all: bool = False

    def __call__(self, checkpoint: str) -> bool | None:
        """Whether it is missing, as far as is known; None if it is of no trial of these."""
        trial = layout.parent(checkpoint)
        is_known = any(names.has(trial.partition("/")[0]) for names in self.trials)
        if trial not in self.newest and not is_known:
            return None
        if self.keeps_all:
            return checkpoint not in self.published
        return layout.by_age(checkpoint) > layout.by_age(self.newest.get(trial, ""))


def send_left_behind(spec: Spec, connector: Connector, wanted: Wanted) -> list[str]:
    """Have each node send what it has; returns the checkpoints, sealed and not published.

    What the agents of an earlier run have is theirs: see `node_agents.finish_earlier`.

    Args:
        spec: Of the restored run, which has the lease. A node where nothing moves for its
            `timeout_s` is not waited for.
        connector: How to reach the destination.
        wanted: Says what is sent.
    """
    if ray.util.client.ray.is_connected():
        return []  # as for `finish_earlier`
    names = [str(found["name"]) for found in ray.util.list_named_actors(all_namespaces=True)
             if found["namespace"] == NAMESPACE]  # fmt: skip
    plain = replace(spec, options=spec.options.without_staging()).to_plain()
    nodes = [str(found["NodeID"]) for found in ray.nodes() if found["Alive"]]
    asked = (plain, connector, ray.put(wanted), names)  # there may be very many that are published
    running = [_Asked(node, asked) for node in nodes]
    sent, said_s = list[str](), time.monotonic()
    while running:
        done, _ = ray.wait([one.sent for one in running], timeout=LOOK_S)
        for one in running:
            if one.sent in done:
                sent += _heard(one.node, one.sent)
        running = [a for a in running if a.sent not in done and a.gets_on(spec.options.timeout_s)]
        if running and time.monotonic() - said_s > SAY_S:
            said_s = time.monotonic()
            logger.info(
                "%s: waiting for what an earlier run may have left on %d nodes",
                spec.where, len(running),
            )  # fmt: skip
    return sent


class LeftSender:
    """`send_here`, by an actor: one whose disk hangs can be ended, and then does nothing late."""

    def __init__(self) -> None:
        self._moved_count = 0

    def send(
        self, plain: Mapping[str, Any], connector: Connector, wanted: Wanted, names: list[str]
    ) -> tuple[list[str], str]:
        """See `send_here`."""
        return send_here(plain, connector, wanted, names, self._moved)

    def moved_count(self) -> int:
        """How far it is: what does not change, does not get on."""
        return self._moved_count

    def _moved(self) -> None:
        self._moved_count += 1


class _Asked:
    """A node that is asked for what it has.

    Attributes:
        node: Its id.
        sent: Ray's reference to what it has sent.
    """

    def __init__(self, node: str, asked: tuple[Any, ...]) -> None:
        # Two threads: one sends, and one tells how far that is.
        options = {"num_cpus": 0, "max_concurrency": 2}
        where = NodeAffinitySchedulingStrategy(node, soft=False)
        actor = ray.remote(LeftSender).options(**options, scheduling_strategy=where)
        self.node, self._actor = node, actor.remote()
        self.sent = self._actor.send.remote(*asked)
        self._moved_s, self._moved_count, self._told = time.monotonic(), -1, None

    def gets_on(self, timeout_s: float) -> bool:
        """Whether to wait for it any longer. If not, it has ended."""
        now_s = time.monotonic()
        self._told = self._told or self._actor.moved_count.remote()
        if ray.wait([self._told], timeout=0)[0]:
            told, self._told = self._told, None
            try:
                moved_count = ray.get(told)
            except RayError:  # what it has sent says so, too
                return True
            if moved_count != self._moved_count:
                self._moved_s, self._moved_count = now_s, moved_count
        has_begun = self._moved_count >= 0
        # A new process takes its time on a busy node; what waits for the destination says so first.
        patience_s = LATE_S + (timeout_s if has_begun else max(timeout_s, START_TIMEOUT_S))
        if now_s - self._moved_s <= patience_s:
            return True
        ray.kill(self._actor)
        why = "nothing has moved there" if has_begun else "it has not begun to look for it"
        logger.warning(
            "node %s may keep what an earlier run has left there: %s for %.0f s (sync_timeout); "
            "look at its disk, and at what it sends to, then restore the experiment again",
            self.node, why, patience_s,
        )  # fmt: skip
        return False


def _heard(node: str, ref: Any) -> list[str]:
    try:
        sent, why = ray.get(ref)
    except RayError as error:
        sent, why = [], str(error).splitlines()[0]
    if sent:
        logger.warning("node %s has sent what an earlier run had left there: %s", node,
                       ", ".join(sent))  # fmt: skip
    if why:
        logger.warning(
            "node %s keeps what an earlier run has left there, and it is not used: %s; mend that, "
            "then restore the experiment again", node, why,
        )  # fmt: skip
    return list(sent)


def send_here(
    plain: Mapping[str, Any], connector: Connector, wanted: Wanted, names: Collection[str],
    moved: Callable[[], None] = lambda: None,
) -> tuple[list[str], str]:  # fmt: skip
    """What this node sends; returns the checkpoints, and why not all were sent.

    `moved` is called again and again as long as this gets on.
    """
    spec, sent, why = Spec.from_plain(plain), list[str](), list[str]()
    for left in (left for root in staging_roots(spec.options) for left in find(root)):
        if left.owner == spec.owner or (left.where == spec.where and _agent_of(left) in names):
            continue
        if not _is_there(left, spec):
            _name_elsewhere(left, spec)
            continue
        if left.where != spec.where and _agent_of(left) in names:
            why.append(f"{left.root}: an agent that knows the experiment as {left.where} has it")
            continue
        if left.is_of_another(spec.begun_by):
            _name(left)
            continue
        try:
            with left.taken() as is_free:
                if is_free:
                    is_stored = wanted.published.__contains__
                    send_left(left, connector.home(spec), wanted, moved, sent, is_stored)
                elif left.root.exists():
                    why.append(f"{left.root}: another process uses it")
        except Exception as error:  # the destination does not answer, or this disk is broken
            why.append(f"{left.root}: {error}")
    return sent, "; ".join(why)


def _is_there(left: LeftBehind, spec: Spec) -> bool:
    """Whether it was staged for this directory, as it is called now, or through a link."""
    if left.where == spec.where:
        return True
    if left.is_of_another(spec.begun_by):  # first: what that is on may be a mount that hangs
        return False
    # Where not all nodes see the directory, what a link leads to on this one says little by itself.
    is_sure = spec.options.shared or (spec.begun_by and left.begun_by == spec.begun_by)
    is_path = not spec.scheme and not is_bucket_url(left.where)
    return bool(is_sure and is_path) and realpath(left.where) == realpath(spec.where)


def _name_elsewhere(left: LeftBehind, spec: Spec) -> None:
    """An experiment of this name, which was moved or is reached by another way, may be this one."""
    is_sure = bool(spec.begun_by) and left.begun_by == spec.begun_by
    is_like = is_sure or posixpath.basename(left.where) == posixpath.basename(spec.where)
    if is_like and not left.is_of_another(spec.begun_by) and (trials := left.trials()):
        logger.warning(
            "%s keeps what was reported in %s: it was staged for %s, not for %s; if that is the "
            "same directory, restore the experiment by that name to have it sent",
            left.root, ", ".join(map(repr, trials)), left.where, spec.where,
        )  # fmt: skip


def _name(left: LeftBehind) -> None:
    """An experiment that was moved aside, or deleted, had this place before."""
    if trials := left.trials():
        logger.warning(
            "%s keeps what was reported in %s: it is of another experiment, which was in %s before",
            left.root, ", ".join(map(repr, trials)), left.where,
        )  # fmt: skip


def _agent_of(left: LeftBehind) -> str:
    return f"{names_of_run(left.where, left.owner)}{left.node}"
