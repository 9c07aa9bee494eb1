"""The options agent: gives workers `storage_options`, which no file, log or pickle may hold.

It is told them by a call: what an actor is made with is kept by Ray, perhaps on a disk. One that
Ray starts again, as its node was lost, knows nothing; so the driver tells it again and again.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import RayError

from tune_sync.agents.home_agent import NAMESPACE
from tune_sync.agents.names import connection

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

ANSWER_TIMEOUT_S = 60.0
# How often the driver tells it. Workers wait as long for one that was started again.
TELL_S = 5.0
LOOK_S = 0.2
# In what is asked for, between the agent's name and the run.
OF_RUN = "/"


class OptionsAgent:
    """Lives as long as the driver, for all of its runs: a process each would fill the memory.

    Tasks may read a run's results when it is over. Who may call it is Ray's matter, as for the
    home agent.
    """

    def __init__(self) -> None:
        self._told: dict[str, dict[str, Any]] = {}

    def keep(self, told: dict[str, dict[str, Any]]) -> None:
        """Remember these, by the run."""
        self._told.update(told)

    def options(self, run: str) -> dict[str, Any] | None:
        """All of a run's; None if it has not been told yet."""
        return self._told.get(run)


def start_options(options: Mapping[str, Any]) -> str:
    """Have this process's agent, which ends with it, know the options of one more run.

    Args:
        options: `SyncConfig.storage_options`.

    Returns:
        What `ask_options` asks for.
    """
    run = uuid.uuid4().hex
    with _KEEP_LOCK:
        here = connection()
        name, agent = _KEEP.get(here, ("", None))
        if not name or _find(name) is None:
            name = f"options-{uuid.uuid4().hex}"
            actor = ray.remote(OptionsAgent).options(
                name=name, namespace=NAMESPACE, num_cpus=0, max_restarts=-1, max_task_retries=3
            )
            agent = actor.remote()
            _KEEP[here] = name, agent
        agent.keep.remote({run: dict(options)})
    _TELLER.add(name, run, options)
    return f"{name}{OF_RUN}{run}"


def _find(name: str) -> Any:
    try:
        return ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return None


def ask_options(name: str, patience_s: float = 0.0) -> dict[str, Any] | None:
    """What the agent `name` knows, or the keeper; None if it is not there.

    Args:
        name: From `start_options`, or the keeper's.
        patience_s: How long to wait for one that has not been told yet.
    """
    end_s = time.monotonic() + patience_s
    agent_name, _, run = name.partition(OF_RUN)
    try:
        agent = ray.get_actor(agent_name, namespace=NAMESPACE)
        while True:
            asked = agent.options.remote(*([run] if run else []))
            found: dict[str, Any] | None = ray.get(asked, timeout=ANSWER_TIMEOUT_S)
            if found is not None or time.monotonic() >= end_s:
                return found
            time.sleep(LOOK_S)
    except (ValueError, RayError):
        return None


class _Teller:
    """Tells the agents of this process, one a cluster, from one thread, while there are any."""

    def __init__(self) -> None:
        self._told: dict[str, dict[str, dict[str, Any]]] = {}
        self._told_lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, name: str, run: str, options: Mapping[str, Any]) -> None:
        """From now on tell the agent of this run too."""
        with self._told_lock:
            self._told[name] = {**self._told.get(name, {}), run: dict(options)}
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
            gone = [name for name, runs in told.items() if not _is_told(name, runs)]
            with self._told_lock:
                for name in gone:
                    del self._told[name]
                if not self._told:
                    self._thread = None
                    return


def _is_told(name: str, runs: dict[str, dict[str, Any]]) -> bool:
    """Whether there is such an agent, which is told; it is not waited for."""
    if not ray.is_initialized():
        return False
    try:
        agent = ray.get_actor(name, namespace=NAMESPACE)  # its methods do not hold it
        agent.keep.remote(runs)
    except ValueError:  # it has ended with its cluster
        return False
    except Exception as error:  # Ray does not answer: told the next time
        logger.debug("%s is not told: %s", name, error)
    return True


_TELLER = _Teller()
# A named actor ends when its last handle of the creating process goes away.
_KEEP: dict[str, tuple[str, Any]] = {}  # by connection
_KEEP_LOCK = threading.Lock()
