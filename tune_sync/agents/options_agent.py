"""The options agent: gives workers `storage_options`, which no file, log or pickle may hold.

It is told them by a call: what an actor is made with is kept by Ray, perhaps on a disk. One that
Ray starts again, as its node was lost, knows nothing; so the driver tells it again and again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import RayError

from tune_sync.agents.home_agent import NAMESPACE

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

ANSWER_TIMEOUT_S = 60.0
# How often the driver tells it. Workers wait as long for one that was started again.
TELL_S = 5.0
LOOK_S = 0.2


class OptionsAgent:
    """Lives as long as the driver. Who may call it is Ray's matter, as for the home agent."""

    def __init__(self) -> None:
        self._options: dict[str, Any] | None = None

    def keep(self, options: dict[str, Any]) -> None:
        """Remember them."""
        self._options = options

    def options(self) -> dict[str, Any] | None:
        """All of them; None if it has not been told yet."""
        return self._options


def start_options(name: str, options: Mapping[str, Any]) -> None:
    """Start the agent `name`, which ends with this process.

    Args:
        name: Its own, in Ray.
        options: `SyncConfig.storage_options`.
    """
    actor = ray.remote(OptionsAgent).options(
        name=name, namespace=NAMESPACE, num_cpus=0, max_restarts=-1, max_task_retries=3
    )
    handle = _KEEP[name] = actor.remote()
    handle.keep.remote(dict(options))
    _TELLER.add(name, options)


def ask_options(name: str, patience_s: float = 0.0) -> dict[str, Any] | None:
    """What the agent `name` knows, or the keeper; None if it is not there.

    Args:
        name: Of either.
        patience_s: How long to wait for one that has not been told yet.
    """
    end_s = time.monotonic() + patience_s
    try:
        agent = ray.get_actor(name, namespace=NAMESPACE)
        while True:
            found: dict[str, Any] | None = ray.get(agent.options.remote(), timeout=ANSWER_TIMEOUT_S)
            if found is not None or time.monotonic() >= end_s:
                return found
            time.sleep(LOOK_S)
    except (ValueError, RayError):
        return None


class _Teller:
    """Tells the agents of this process, from one thread, as long as there are any."""

    def __init__(self) -> None:
        self._told: dict[str, dict[str, Any]] = {}
        self._told_lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, name: str, options: Mapping[str, Any]) -> None:
        """From now on tell this one too."""
        with self._told_lock:
            self._told[name] = dict(options)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._tell, name="tune_sync-options", daemon=True
                )
                self._thread.start()

    def _tell(self) -> None:
        while True:
            time.sleep(TELL_S)
            with self._told_lock:
                told = dict(self._told)
            gone = [name for name, options in told.items() if not _is_told(name, options)]
            with self._told_lock:
                for name in gone:
                    del self._told[name]
                if not self._told:
                    self._thread = None
                    return


def _is_told(name: str, options: dict[str, Any]) -> bool:
    """Whether there is such an agent, which is told; it is not waited for."""
    if not ray.is_initialized():
        return False
    try:
        agent = ray.get_actor(name, namespace=NAMESPACE)  # its methods do not hold it
        agent.keep.remote(options)
    except ValueError:  # it has ended with its cluster
        return False
    except Exception as error:  # Ray does not answer: told the next time
        logger.debug("%s is not told: %s", name, error)
    return True


_TELLER = _Teller()
# A named actor ends when its last handle of the creating process goes away.
_KEEP: dict[str, Any] = {}
