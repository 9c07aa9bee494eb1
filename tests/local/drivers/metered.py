"""Runs on a Ray of its own, and what Prometheus would read meanwhile: `STORAGE`."""

from __future__ import annotations

import json
import re
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import ray

from tests.local.halting import TIMEOUT_S, halting
from tests.local.trainables import HALF, HALT_BYTES
from tune_sync.agents.meters import NodeMeters
from tune_sync.sending.orders import News

INTERVAL_MS = 1000
SAMPLE = re.compile(r"ray_(tune_sync_\w+)\{(.*)\} (\S+)")
LABEL = re.compile(r'(\w+)="([^"]*)"')

Found = dict[str, float]


def read(experiment: str) -> Found:
    """Metric -> its value, of one experiment, summed over processes. Checks the tags.

    A transport, where it is one of the tags, is a part of the name.
    """
    (node,) = ray.nodes()
    url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        text = answer.read().decode()
    found: Found = {}
    for name, labels, value in SAMPLE.findall(text):
        tags = dict(LABEL.findall(labels))
        if tags["experiment"] == experiment:
            assert tags["node"] == node["NodeID"], tags
            name = " by ".join(filter(None, (name, tags.get("transport"))))
            found[name] = found.get(name, 0.0) + float(value)
    return found


def until(experiment: str, holds: Callable[[Found], bool]) -> Found:
    """What is read once it is so, or when time is up."""
    end_s, found = time.monotonic() + TIMEOUT_S, Found()
    while time.monotonic() < end_s:
        with suppress(OSError):  # Ray's process that answers may start after the first trial
            if holds(found := read(experiment)):
                break
        time.sleep(0.2)
    return found


def stored(count: int) -> Callable[[Found], bool]:
    """Whether all is told of so many checkpoints: each process tells what it knows, by and by."""
    wanted = {"checkpoints": count, "bytes": count * HALT_BYTES}
    return lambda f: all(f.get(f"tune_sync_stored_{n}_total", 0) >= v for n, v in wanted.items())


def main() -> None:
    storage = Path(sys.argv[1])
    ray.init(
        "local", num_cpus=2, include_dashboard=False, object_store_memory=200_000_000,
        log_to_driver=False, _system_config={"metrics_report_interval_ms": INTERVAL_MS},
    )  # fmt: skip
    found: dict[str, Found] = {}
    with halting(storage, "stored", "direct"):
        reports = "tune_sync_reports_total"
        found["direct"] = until("direct", lambda f: stored(HALF)(f) and f.get(reports, 0) >= HALF)
    found["direct, at its end"] = until("direct", stored(2 * HALF))
    with halting(storage, "staged", "staged") as run:
        with run.refusing():
            run.go_on()
            name, size = "tune_sync_staged_checkpoints", "tune_sync_staged_bytes"
            # The first half was staged too, a moment ago.
            found["refusing"] = until(
                "staged",
                lambda f: f.get(name, 0) >= HALF and f.get(size, 0) >= HALF * HALT_BYTES
                and stored(HALF)(f) and f.get(reports, 0) >= 2 * HALF,
            )  # fmt: skip
        run.wait_until_stored(2 * HALF)
        oldest = "tune_sync_oldest_unstored_seconds"
        found["taking"] = until("staged", lambda f: f.get(name, HALF) == f.get(oldest, 1) == 0)
    found["staged, at its end"] = until("staged", stored(2 * HALF))
    meters = NodeMeters("replicated")  # replicas need two nodes
    for tcp_bytes in (5, 5, 7):
        meters.show_replicas({"tcp": tcp_bytes, "object_store": 2})
    name = "tune_sync_replica_bytes_total by"
    found["replicated"] = until(
        "replicated",
        lambda f: f.get(f"{name} tcp", 0) >= 7 and f.get(f"{name} object_store", 0) >= 2,
    )
    failed = {"one": "it has gone", "another": "it is damaged"}
    NodeMeters("kept twice").show(News(failed=failed, replicas_count=3, replicas_bytes=9))
    size = "tune_sync_replicated_bytes"
    found["kept twice"] = until("kept twice", lambda f: f.get(size, 0) == 9)
    print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
