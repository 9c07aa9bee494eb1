"""The options keeper: remembers a run's `storage_options` for its node agents, in memory alone.

The options agent ends with the driver. A node agent that is started again after that asks here. The
keeper is told the options by a call: what an actor is made with is kept by Ray, perhaps on a disk.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tune_sync.agents.home_agent import NAMESPACE

LOOK_S = 5.0
# An agent that is started again has its name meanwhile; a look may still fail now and then.
LOOKS_BEFORE_END = 3


class OptionsKeeper:
    """Ends when no node agent of its run is left. Ray does not start it again: agents do.

    Args:
        name: Its own, in Ray.
        agents: What the names of the run's node agents begin with.
    """

    def __init__(self, name: str, agents: str) -> None:
        self._name = name
        self._agents = agents
        self._options: dict[str, Any] | None = None
        threading.Thread(target=self._watch, name="tune_sync-keeper", daemon=True).start()

    def keep(self, options: dict[str, Any]) -> None:
        """Remember them."""
        self._options = options

    def options(self) -> dict[str, Any] | None:
        """All of them; None if nobody has told them yet."""
        return self._options

    def _watch(self) -> None:
        missed_count = 0
        while missed_count < LOOKS_BEFORE_END:
            time.sleep(LOOK_S)
            with suppress(RayError, OSError):
                found = ray.util.list_named_actors(all_namespaces=True)
                is_needed = any(str(f["name"]).startswith(self._agents) for f in found)
                missed_count = 0 if is_needed else missed_count + 1
        with suppress(ValueError, RayError):
            ray.kill(ray.get_actor(self._name, namespace=NAMESPACE), no_restart=True)


def keep_options(name: str, agents: str, options: Mapping[str, Any]) -> None:
    """Tell the keeper `name`, which is started on this node if there is none. Does not wait."""
    try:
        keeper = ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        keeper = _start(name, agents)
    keeper.keep.remote(dict(options))


def _start(name: str, agents: str) -> Any:
    here = ray.get_runtime_context().get_node_id()
    return (
        ray.remote(OptionsKeeper)
        .options(
            name=name,
            namespace=NAMESPACE,
            get_if_exists=True,
            lifetime="detached",
            num_cpus=0,
            max_restarts=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=True),
        )
        .remote(name, agents)
    )
