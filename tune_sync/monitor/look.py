"""`status`: how far a run is, from whatever can be reached of it."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tune_sync.buckets.opening import open_bucket
from tune_sync.buckets.url import is_bucket_url, parse_bucket_url, redacted
from tune_sync.destination import resolve_storage_path
from tune_sync.errors import ConfigError, TuneSyncError
from tune_sync.homes.bucket.home import BucketHome
from tune_sync.homes.home import Home, LocalHome
from tune_sync.homes.lease import CLOCKS_DIFFER_S, Holder
from tune_sync.homes.look import look_at
from tune_sync.monitor.seen import NodeStatus, Status

if TYPE_CHECKING:
    from tune_sync.agents.known_runs import Answers, KnownRun
    from tune_sync.sending.orders import News


# A destination that is away is tried for longer than this; what is staged is told meanwhile.
LOOK_TIMEOUT_S = 10.0


def status(
    path_or_name: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> Status:
    """Say how far a run is, from any process: what is staged, stored and failed, and who drives it.

    Where `ray.init` has connected this process to a cluster, the run's agents there are asked.
    Else it tells what is at the destination. It takes no lease and changes nothing.

    Args:
        path_or_name: The experiment's path or URL, or its name: of a run on this cluster, or of a
            directory here or below `~/ray_results`.
        storage_options: As for `SyncConfig`, for a bucket. None: those of the run, if it is known
            on this cluster.

    Raises:
        FileNotFoundError: No experiment of that name or path is known here.
        ConfigError: Several runs on this cluster have that name; names them.
    """
    text = os.fspath(path_or_name)
    answers = _ask_cluster()
    runs = _matching(answers.runs, text) if answers is not None else []
    if answers is None or not runs:
        return _look(*_find(text, storage_options, has_cluster=answers is not None))
    from tune_sync.agents.connect import home_of

    spec = runs[0].spec
    staging = Status(
        spec.where,
        nodes=_nodes(runs, answers.silent),
        failed={checkpoint: why for run in runs for checkpoint, why in run.lost.items()},
    )

    def home() -> Home:
        if spec.scheme and storage_options is not None:  # what is given wins
            return _find(spec.where, storage_options, has_cluster=True)[0]
        return home_of(spec)

    found = _within(LOOK_TIMEOUT_S, lambda: _look(home(), spec.where), spec.where)
    if isinstance(found, Exception):
        return replace(staging, error=str(found))
    return replace(found, nodes=staging.nodes, failed=staging.failed)


def stored_status(text: str) -> Status | Exception | None:
    """What is stored at a path or URL, without a cluster.

    Returns:
        Why that cannot be told within `LOOK_TIMEOUT_S`; None for a name.
    """
    if not _is_place(text):
        return None
    return _within(LOOK_TIMEOUT_S, lambda: _look(*_find(text, None, has_cluster=False)), text)


def _within(timeout_s: float, look: Callable[[], Status], place: str) -> Status | Exception:
    """What a look at the destination says; or the error, also if it takes too long."""
    found: list[Status | Exception] = []

    def work() -> None:
        try:
            found.append(look())
        except (TuneSyncError, OSError) as error:
            found.append(error)

    thread = threading.Thread(target=work, name="tune_sync-status", daemon=True)
    thread.start()
    thread.join(timeout_s)
    return found[0] if found else TimeoutError(_silent(place, timeout_s))


def _silent(place: str, timeout_s: float) -> str:
    """That it does not answer, and what to look at."""
    if is_bucket_url(place):
        way_out = (
            "see that the environment here has its endpoint, region and credentials, and that this "
            "host reaches it"
        )
    else:
        way_out = "see that its disk, or file server, works on this host"
    return f"{place} does not answer within {timeout_s:.0f} s; {way_out}; then ask again"


def _look(home: Home, where: str) -> Status:
    stored, now_s = look_at(home, where), time.time()
    newest_s = max(0.0, now_s - stored.newest_s) if stored.newest_s is not None else None
    driver = _named(stored.holder, now_s) if stored.holder is not None else ""
    return Status(where, stored.is_live, driver, stored.count, newest_s)


def _named(holder: Holder, now_s: float) -> str:
    age = f", last heard of {holder.age_s(now_s):.0f} s ago" if holder.heartbeat_s > 0 else ""
    if (ahead_s := holder.ahead_s(now_s)) > CLOCKS_DIFFER_S:
        age = f", last heard of {ahead_s:.0f} s ahead of the clock here"
    return f"process {holder.pid} on host {holder.host}{age}"


# The cluster


def is_joined() -> bool:
    """Whether this process is on a cluster. Loads no Ray by itself."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def _ask_cluster() -> Answers | None:
    """What agents say; None if this process is on no cluster."""
    if not is_joined():
        return None
    from tune_sync.agents.home_agent import HOME, NAMESPACE
    from tune_sync.agents.known_runs import ask_agents
    from tune_sync.agents.names import STAGE

    return ask_agents(NAMESPACE, (HOME, STAGE))


def _matching(runs: tuple[KnownRun, ...], text: str) -> list[KnownRun]:
    """All that is known of the one run that is meant."""
    where = _where(text) if _is_place(text) else ""
    found = [run for run in runs if run.spec.where == where]
    found = found or [run for run in runs if run.spec.experiment == text]
    places = sorted({run.spec.where for run in found})
    if len(places) > 1:
        raise ConfigError(
            f"several runs on this cluster are named {text!r}: {', '.join(places)}; give the path"
        )
    return found


def _nodes(runs: list[KnownRun], silent: tuple[str, ...]) -> tuple[NodeStatus, ...]:
    from tune_sync.agents.names import names_of, node_of

    start = names_of(runs[0].spec.where)
    mute = [node_of(name) for name in silent if name.startswith(start)]
    found = [_of_node(run, run.news) for run in runs if run.news is not None]
    found += [NodeStatus(node, error="it does not answer") for node in mute]
    return tuple(sorted(found, key=lambda node: (node.host, node.node)))


def _of_node(run: KnownRun, news: News) -> NodeStatus:
    return NodeStatus(
        run.node, run.host, news.left_count, news.left_bytes, news.stored_count,
        news.stored_bytes, len(news.failed), news.left_s, news.error,
        news.replicas_count, news.replicas_bytes, tuple(news.transports),
        getattr(news, "unreplicated", ""),  # an agent of an older version has none
    )  # fmt: skip


# Without one


def _is_place(text: str) -> bool:
    return "/" in text or text in (".", "..", "~")


def _where(text: str) -> str:
    """As `Spec.where` has it."""
    return str(parse_bucket_url(text)) if is_bucket_url(text) else resolve_storage_path(text)


def _find(text: str, options: Mapping[str, Any] | None, *, has_cluster: bool) -> tuple[Home, str]:
    if is_bucket_url(text):
        url = parse_bucket_url(text)
        return BucketHome(open_bucket(url, dict(options or {}))), str(url)
    candidates = [resolve_storage_path(text)]
    if not text.startswith((".", "~", "$", "/", "file:")):  # may be a name, also one as "group/exp"
        candidates.append(resolve_storage_path(f"~/ray_results/{text}"))
    for place in candidates:
        if Path(place).is_dir():
            return LocalHome(Path(place)), place
    why = "no run on this cluster has that name" if has_cluster else "this process is on no cluster"
    raise FileNotFoundError(
        f"no experiment {redacted(text)!r} is known here: {why}, and there is no directory "
        f"{' or '.join(map(redacted, candidates))}; give its path or URL, or ask on its cluster "
        "(set RAY_ADDRESS, or call ray.init())"
    )
