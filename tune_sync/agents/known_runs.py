"""What the agents of a cluster know of its runs, for whoever asks from outside."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.exceptions import RayError

from tune_sync.sending.orders import News
from tune_sync.spec import Spec

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

# An agent answers within milliseconds, unless its node is on its way out, or sends so much that an
# answer stands behind seconds of it.
ANSWER_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class KnownRun:
    """A run, as one agent knows it.

    Attributes:
        plain: Its filesystem, from `Spec.to_plain`.
        node: Where the agent sends what is staged, in Ray; "" for one that stages nothing.
        host: That node's address.
        news: How far it is; None for an agent that stages nothing.
        lost: Checkpoints that will never be stored, and why, as the driver has told.
    """

    plain: Mapping[str, Any]
    node: str = ""
    host: str = ""
    news: News | None = None
    lost: Mapping[str, str] = field(default_factory=dict)

    @property
    def spec(self) -> Spec:
        """Its filesystem."""
        return Spec.from_plain(self.plain)


@dataclass(frozen=True, slots=True)
class Answers:
    """What agents say.

    Attributes:
        runs: What those know that answered.
        silent: Names of those that did not.
    """

    runs: tuple[KnownRun, ...]
    silent: tuple[str, ...]


def ask_agents(namespace: str, kinds: Iterable[str]) -> Answers:
    """Ask all agents of this cluster which runs they know.

    Args:
        namespace: Theirs.
        kinds: What their names begin with.
    """
    starts, asked, silent = tuple(kinds), dict[Any, str](), list[str]()
    for found in ray.util.list_named_actors(all_namespaces=True):
        name = str(found["name"])
        if found["namespace"] != namespace or not name.startswith(starts):
            continue
        try:
            agent = ray.get_actor(name, namespace=namespace)  # its methods do not hold it
            asked[agent.known_runs.remote()] = name
        except (ValueError, AttributeError, RayError):  # it has just ended, or is another version's
            silent.append(name)
    refs = list(asked)
    done = ray.wait(refs, num_returns=len(refs), timeout=ANSWER_TIMEOUT_S)[0] if refs else []
    silent += [name for ref, name in asked.items() if ref not in done]
    runs: list[KnownRun] = []
    for ref in done:
        try:
            runs += ray.get(ref)
        except RayError as error:
            logger.debug("%s does not answer: %s", asked[ref], error)
            silent.append(asked[ref])
    return Answers(tuple(runs), tuple(silent))
