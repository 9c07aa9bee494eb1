"""`tune-sync status`: prints how far a run is. Joins the Ray cluster of this machine, if any."""

from __future__ import annotations

import argparse
import os
import sys

from tune_sync.errors import ConfigError, TuneSyncError
from tune_sync.monitor.joining import ENDED_TIMEOUT_S, JOIN_TIMEOUT_S, join_cluster
from tune_sync.monitor.look import is_joined, status, stored_status
from tune_sync.monitor.seen import Status


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what it takes."""
    parser.add_argument("experiment", help="its path or URL, or the name of a run on this cluster")
    parser.add_argument(
        "--wait", type=float, metavar="SECONDS",
        help=f"at most, for the Ray cluster to answer (default: {JOIN_TIMEOUT_S:.0f}; "
        f"{ENDED_TIMEOUT_S:.0f} where all is stored)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Print it. The status is 1 if nothing is known of that experiment."""
    stored = stored_status(arguments.experiment)
    if isinstance(stored, ConfigError):  # nowhere can that be
        raise stored
    is_told = isinstance(stored, Status)
    if is_told:  # a cluster may take long to answer, and may not be that of the run
        print(stored, flush=True)  # noqa: T201
    wait_s = arguments.wait
    if wait_s is None:  # without a lease its run has ended, and no node has more of it
        is_over = isinstance(stored, Status) and not stored.driver
        wait_s = ENDED_TIMEOUT_S if is_over else JOIN_TIMEOUT_S
    why_alone = join_cluster(wait_s)
    if isinstance(stored, Exception) and not is_joined():  # not looked for again: it takes its time
        _complain("; ".join(filter(None, (why_alone, str(stored)))))
        code = 1
    elif why_alone:
        _complain(f"{why_alone}; this is what is stored, without what nodes have staged")
        code = 0 if is_told else _tell(arguments.experiment)
    else:
        code = _tell(arguments.experiment, is_told=is_told)
    if why_alone:  # Ray may still try to connect, and its end would wait for that
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _tell(experiment: str, *, is_told: bool = False) -> int:
    """Print it. `is_told`: what is stored was printed; is there more?"""
    try:
        found = status(experiment)
    except (TuneSyncError, OSError) as error:
        _complain(str(error))
        return 1
    if not is_told or found.nodes or found.failed:
        print(found)  # noqa: T201
    return 0


def _complain(text: str) -> None:
    print(f"tune-sync status: {text}", file=sys.stderr)  # noqa: T201
