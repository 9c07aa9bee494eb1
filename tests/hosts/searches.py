"""Starts searches on isolated hosts and checks what they leave on the driver's host."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.bed import Cluster

DRIVERS = Path("tests/hosts/drivers")


def search(
    cluster: Cluster, host: str = "head", *, timeout_s: float = 240, **spec: Any
) -> dict[str, Any]:
    """Run ``drivers/search.py`` on a host; see there what a search is made of."""
    return cluster.drive(host, DRIVERS / "search.py", [json.dumps(spec)], timeout_s=timeout_s)


def newest_output(cluster: Cluster) -> str:
    """All that the driver has printed that was started last by `search`."""
    logs = cluster.dir.glob("drive-*-search-*.log")
    return max(logs, key=lambda log: int(log.name.split("-")[1])).read_text()


def assert_sound(found: dict[str, Any]) -> None:
    """What is visible is published, nothing is half done, and each trial's newest one opens."""
    visible = [f"{t['dir']}/{name}" for t in found["trials"] for name in t["checkpoints"]]
    assert found["published"] == sorted(visible)
    assert found["leftovers"] == []
    for trial in found["trials"]:
        newest = max(trial["checkpoints"])
        assert trial["opened"]["step"] == trial["checkpoints"][newest]["step"]
        assert all(c["trial_id"] == trial["id"] for c in trial["checkpoints"].values())
        assert trial["id"] in trial["dir"]


def stored_digests(trial: dict[str, Any]) -> dict[int, str]:
    """Step -> digest of the checkpoint on the driver's host."""
    return {c["step"]: c["digest"] for c in trial["checkpoints"].values()}


def reported_digests(trial: dict[str, Any]) -> dict[int, str]:
    """Step -> digest that the trial took where it ran, before it reported."""
    return {row["step"]: row["digest"] for row in trial["reported"] if "digest" in row}


def nodes(trial: dict[str, Any]) -> set[str]:
    """The hosts that a trial ran on."""
    return {row["node"] for row in trial["reported"]}


def wait_for(holds: Callable[[], bool], what: str, timeout_s: float = 100) -> None:
    """Wait until something holds. It may look at directories that go just then.

    Raises:
        TimeoutError: It did not in time.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        with suppress(FileNotFoundError):
            if holds():
                return
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"waited {timeout_s} s for {what}")
        time.sleep(0.05)


def saved_digests(cluster: Cluster, trial_id: str) -> dict[int, str]:
    """Step -> digest that a class trainable took, on whichever host, when it saved."""
    found = {}
    for name in ("head", *cluster.workers):
        notes = cluster.host(name).path(cluster.host(name).expand("~/written.jsonl"))
        for line in notes.read_text().splitlines() if notes.exists() else ():
            note = json.loads(line)
            if note["trial_id"] == trial_id:
                found[note["step"]] = note["digest"]
    return found


def said(cluster: Cluster, host: str, text: str) -> bool:
    """Whether a process of a host has logged something."""
    logs = cluster.host(host).path("/tmp/ray").glob("session_2*/logs/worker-*")
    return any(text in log.read_text(errors="replace") for log in logs)
