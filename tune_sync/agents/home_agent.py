"""The home agent: a Ray actor on the home node that serves its experiment directories.

It keeps nothing in memory that results depend on: every call says which file it is about, so Ray
may restart it at any time and repeat a call. Only what trials told of files that are not stored is
lost then (it is in their logs, and `fit()` warns of it at its end). It serves only experiment
directories of tune_sync (they hold `.tune_sync/format.json`) and what is inside them, checks every
key against the directory and every chunk against its digest, and unpickles nothing of what it
stores. Who may call it is Ray's matter (token authentication, TLS): it opens no port of its own.
"""

from __future__ import annotations

import logging
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray.exceptions import GetTimeoutError, RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tune_sync import layout
from tune_sync.agents.known_runs import KnownRun
from tune_sync.errors import HomeLostError, PathRefusedError
from tune_sync.homes.digests import check_digest
from tune_sync.homes.home import LocalHome, Piece

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

NAMESPACE = "tune_sync"
# Bulk writes and reads must not keep short questions waiting. Writes go one after the other:
# threads that write at once spin on the file system's locks, and take the cores that bring the
# next chunk (see docs/benchmarks.md).
WRITE_THREADS = 1
READ_THREADS = 4
CALL_THREADS = 32
# A new process of Ray on a busy machine takes seconds, one that needs an environment, a minute.
START_TIMEOUT_S = 120.0
# Of files that are not stored so many of an experiment are known, so that memory is bounded.
TOLD_COUNT = 10_000
TELL_TIMEOUT_S = 30.0
# Of a driver's runs the last so many are found by their names.
KNOWN_COUNT = 100
# What the names of all home agents begin with.
HOME = "home-"


class HomeAgent:
    """See the module's text. One a driver and home node; `root` is an experiment directory."""

    def __init__(self) -> None:
        self._homes: dict[tuple[str, str, int], LocalHome] = {}
        self._unstored: dict[str, dict[str, str]] = {}
        self._known: dict[str, KnownRun] = {}
        self._publishing: dict[tuple[str, str, int], threading.Lock] = {}

    def ping(self) -> str:
        """The id of the node it runs on."""
        return str(ray.get_runtime_context().get_node_id())

    def call(self, root: str, owner: str, depth: int, verb: str, *args: Any) -> Any:
        """One verb of `LocalHome` that moves few bytes."""
        if verb not in _VERBS:
            raise PathRefusedError(f"{verb!r} is not a verb of a home")
        do = getattr(self._home(root, owner, depth), verb)
        if verb != "publish":
            return do(*args)
        # It may come twice at once: who could not reach us asks again. Others' disks are not its.
        with self._publishing.setdefault((root, owner, depth), threading.Lock()):
            return do(*args)

    def tell_unstored(self, root: str, key: str, reason: str | None) -> None:
        """Note that a file of an experiment is not stored: its trial may end before anyone asks.

        No time is noted to tell by whether it was stored since: clocks differ, or are set.

        Args:
            root: The experiment directory.
            key: The file's.
            reason: Why; None: it is stored after all.
        """
        told = self._unstored.setdefault(root, {})
        if reason is None:
            told.pop(key, None)
        elif len(told) < TOLD_COUNT or key in told:
            told[key] = reason

    def unstored(self, root: str) -> tuple[bool, dict[str, str]]:
        """What was told of an experiment, and of trainers inside of its trials.

        Returns:
            Whether this agent knows the run: else it was started again, and has forgotten what
            it was told before. And the file's key -> why.
        """
        found: dict[str, str] = {}
        for at, told in list(self._unstored.items()):
            inside = layout.below(root, at)
            if inside is not None:
                found |= {f"{inside}/{key}".lstrip("/"): why for key, why in list(told.items())}
        return root in self._known, found

    def note_run(self, where: str, run: KnownRun) -> None:
        """Note a run of this agent's driver, which begins, for those who ask from outside."""
        for at in [at for at in list(self._unstored) if layout.below(where, at) is not None]:
            self._unstored.pop(at, None)
        self._known.pop(where, None)
        self._known[where] = run
        while len(self._known) > KNOWN_COUNT:
            del self._known[next(iter(self._known))]

    def known_runs(self) -> list[KnownRun]:
        """The runs of this agent's driver."""
        return list(self._known.values())

    @ray.method(concurrency_group="write")  # type: ignore[untyped-decorator]
    def write(
        self, root: str, owner: str, depth: int, key: str, offset_bytes: int,
        digest: str, data: np.ndarray[Any, Any],
    ) -> None:  # fmt: skip
        """A chunk of a staged file."""
        view = memoryview(data)
        check_digest(key, view, digest)
        self._home(root, owner, depth).write(key, offset_bytes, view)

    @ray.method(concurrency_group="write")  # type: ignore[untyped-decorator]
    def write_batch(
        self, root: str, owner: str, depth: int, pieces: list[Piece],
        digest: str, data: np.ndarray[Any, Any],
    ) -> None:  # fmt: skip
        """Many small staged files."""
        view = memoryview(data)
        check_digest(f"a batch of {len(pieces)} files", view, digest)
        self._home(root, owner, depth).write_batch(pieces, view)

    @ray.method(concurrency_group="write")  # type: ignore[untyped-decorator]
    def put_file(
        self, root: str, owner: str, depth: int, incoming: str, key: str,
        digest: str, data: bytes, durable: bool,
    ) -> None:  # fmt: skip
        """One small file that is no checkpoint's. It may come again: `incoming` tells."""
        view = memoryview(data)
        check_digest(key, view, digest)
        self._home(root, owner, depth).put_file_as(incoming, key, view, durable)

    @ray.method(concurrency_group="read")  # type: ignore[untyped-decorator]
    def read(
        self, root: str, owner: str, depth: int, key: str, offset_bytes: int, length_bytes: int
    ) -> np.ndarray[Any, Any]:
        """Bytes of a file, as an array: Ray moves those without a copy."""
        data = self._home(root, owner, depth).read(key, offset_bytes, length_bytes)
        return np.frombuffer(data, dtype=np.uint8)

    @ray.method(concurrency_group="read")  # type: ignore[untyped-decorator]
    def read_many(
        self, root: str, owner: str, depth: int, keys: list[str]
    ) -> tuple[list[int], np.ndarray[Any, Any]]:
        """Many small files: their lengths, and their bytes in a row."""
        files = self._home(root, owner, depth).read_many(keys)
        return [len(data) for data in files], np.frombuffer(b"".join(files), dtype=np.uint8)

    def _home(self, root: str, owner: str, depth: int) -> LocalHome:
        home = self._homes.get((root, owner, depth))
        if home is None:
            experiment = _check_root(root)
            home = LocalHome(Path(root), owner, depth, experiment)
            home = self._homes.setdefault((root, owner, depth), home)
        return home


# What `call` may be asked for: the verbs of `home.Home` that have no method of their own here.
_VERBS = frozenset(
    ("info", "list", "make_dir", "remove", "begin", "begin_file", "link", "seal", "commit_file",
     "drop_file", "discard_attempt", "publish")
)  # fmt: skip


def _check_root(root: str) -> Path:
    """Refuse a directory that is not of an experiment, or that the experiment keeps safe.

    Returns:
        The experiment's directory: itself, but for a trainer inside of a trial.
    """
    path = Path(os.path.realpath(root)) if "\0" not in root else Path("/")
    above = [d for d in (path, *path.parents) if (d / layout.FORMAT_KEY).is_file()]
    if not above:
        raise PathRefusedError(f"{root!r} on the home node is no experiment of tune_sync")
    inside = path.relative_to(above[-1]).parts
    if layout.INTERNAL_DIR in inside or any(map(layout.is_checkpoint_name, inside)):
        raise PathRefusedError(f"{root!r} is a part of an experiment that only commits change")
    return above[0]


def start_agent(name: str, node_id: str) -> None:
    """Start the agent `name` on a node, or find it there. Returns when it answers."""
    with _START_LOCK:
        handle = _KEEP.get(name)
        if handle is not None and _answers(handle):
            return
        handle = _kept(name, node_id, instead_of=handle)
    try:
        ray.get(handle.ping.remote(), timeout=START_TIMEOUT_S)
    except (GetTimeoutError, RayActorError) as error:
        raise HomeLostError(
            f"the home agent does not start on node {node_id}: {error}; is tune_sync installed "
            "there, in the environment that Ray runs in?"
        ) from error


def begin_agent(name: str, node_id: str) -> Any:
    """The agent `name` on a node, which may still be starting. Returns at once."""
    return _kept(name, node_id)


def _kept(name: str, node_id: str, instead_of: Any = None) -> Any:
    """The handle that is kept, made anew if there is none but `instead_of`."""
    with _KEEP_LOCK:  # of two threads, the second would replace the first one's handle
        if _KEEP.get(name) is instead_of:
            # Kept for good: the actor ends with its first handle, whatever others there are.
            _KEEP[name] = _create(name, node_id)
        return _KEEP[name]


def _answers(handle: Any) -> bool:
    try:
        ray.get(handle.ping.remote(), timeout=START_TIMEOUT_S)
    except ray.exceptions.RayError:
        return False
    return True


def _create(name: str, node_id: str) -> Any:
    groups = {"write": WRITE_THREADS, "read": READ_THREADS}
    actor = ray.remote(concurrency_groups=groups)(HomeAgent).options(
        name=name, namespace=NAMESPACE, get_if_exists=True, num_cpus=0, max_restarts=-1,
        max_task_retries=3, max_concurrency=CALL_THREADS,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
    )  # fmt: skip
    return actor.remote()


def tell_unstored(name: str, root: str, key: str, reason: str | None) -> None:
    """Tell the agent `name` of a file that is not stored; no error if it does not answer.

    None for the reason: it is stored after all.
    """
    with suppress(ValueError, ray.exceptions.RayError):
        agent = ray.get_actor(name, namespace=NAMESPACE)
        ray.get(agent.tell_unstored.remote(root, key, reason), timeout=TELL_TIMEOUT_S)


def ask_unstored(
    name: str, root: str, timeout_s: float = START_TIMEOUT_S, *, is_last: bool = True
) -> dict[str, str]:
    """What the agent `name` was told of an experiment.

    Args:
        name: The agent's.
        root: The experiment directory.
        timeout_s: How long to wait for its answer.
        is_last: The run is at its end: a warning tells if the agent may have forgotten some.

    Raises:
        HomeLostError: It does not answer.
    """
    try:
        agent = ray.get_actor(name, namespace=NAMESPACE)
        is_known, found = ray.get(agent.unstored.remote(root), timeout=timeout_s)
    except (ValueError, ray.exceptions.RayError) as error:
        raise HomeLostError(
            f"which of them are not stored is not known, as the home agent does not answer ({error}"
            "); look into the logs of the trials"
        ) from error
    if not is_known and is_last:
        logger.warning(
            "%s: the home agent was started again; files that trials could not store before that "
            "are named in the logs of the trials only", root,
        )  # fmt: skip
    return dict(found)


# A named actor ends when the handle goes away that its creator got: a later one does not hold it.
_KEEP: dict[str, Any] = {}
_KEEP_LOCK = threading.Lock()  # never held while an agent is waited for
_START_LOCK = threading.Lock()
