"""The options agent: gives workers `storage_options`, which no file, log or pickle may hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ray

from tune_sync.agents.home_agent import NAMESPACE

ANSWER_TIMEOUT_S = 60.0


class OptionsAgent:
    """Lives as long as the driver. Who may call it is Ray's matter, as for the home agent.

    Args:
        options: `SyncConfig.storage_options`.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options

    def options(self) -> dict[str, Any]:
        """All of them."""
        return self._options


def start_options(name: str, options: Mapping[str, Any]) -> None:
    """Start the agent `name`. It ends with this process."""
    actor = ray.remote(OptionsAgent).options(
        name=name, namespace=NAMESPACE, num_cpus=0, max_restarts=-1
    )
    _KEEP[name] = actor.remote(dict(options))


def ask_options(name: str) -> dict[str, Any] | None:
    """What the agent `name` knows, or the keeper; None if it is not there."""
    try:
        agent = ray.get_actor(name, namespace=NAMESPACE)
        found: dict[str, Any] | None = ray.get(agent.options.remote(), timeout=ANSWER_TIMEOUT_S)
    except (ValueError, ray.exceptions.RayError):
        return None
    return found


# A named actor ends when its last handle of the creating process goes away.
_KEEP: dict[str, Any] = {}
