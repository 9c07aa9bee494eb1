"""`tune-sync status`: prints how far a run is. Joins the Ray cluster of this machine, if any."""

from __future__ import annotations

import argparse
import os
import sys

from tune_sync.errors import TuneSyncError
from tune_sync.monitor.joining import JOIN_TIMEOUT_S, join_cluster
from tune_sync.monitor.look import status, stored_status


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what it takes."""
    parser.add_argument("experiment", help="its path or URL, or the name of a run on this cluster")
    parser.add_argument(
        "--wait", type=float, default=JOIN_TIMEOUT_S, metavar="SECONDS",
        help="at most, for the Ray cluster to answer (default: %(default).0f)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Print it. The status is 1 if nothing is known of that experiment."""
    stored = stored_status(arguments.experiment)
    if stored is not None:  # a cluster may take long to answer, and may not be that of the run
        print(stored, flush=True)  # noqa: T201
    why_alone = join_cluster(arguments.wait)
    if not why_alone:
        return _tell(arguments.experiment, is_told=stored is not None)
    _complain(f"{why_alone}; this is what is at the destination, without what nodes have staged")
    code = 0 if stored is not None else _tell(arguments.experiment)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # Ray may still try to connect, and its end would wait for that


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
