"""Nodes that do not answer before training starts hold it up once, not one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray import exceptions

from tune_sync.agents import bucket_probe, memory_probe, probe, staging_probe, transport_probe
from tune_sync.agents.connect import RayConnector
from tune_sync.errors import ConfigError, NotSharedError
from tune_sync.spec import Options, Spec

NODES_COUNT = 5
TIMEOUT_S = 0.2


def check_memory(at: Path) -> None:
    memory_probe.check_memory(Options(memory_dir=str(at)))


def check_staging(at: Path) -> None:
    staging_probe.check_staging(
        Spec("key", "/results", "x", "s3", None, Options(wait_for="staged"))
    )


def check_shared(at: Path) -> None:
    (at / ".tune_sync").mkdir()
    with pytest.raises(NotSharedError, match="cannot be asked"):
        probe.check_shared(str(at))


def check_bucket(at: Path) -> None:
    """Who is silent may be able to."""
    spec = Spec("key", "/results", "x", "s3", None, Options())
    bucket_probe.check_bucket_of_nodes(spec, RayConnector())


def check_transports(at: Path) -> None:
    assert transport_probe._ask_all(nodes(), check_transports) == []


def nodes() -> list[dict[str, Any]]:
    """As Ray tells of them."""
    return [
        {"NodeID": f"n{n}", "Alive": True, "Resources": {"CPU": 1}, "NodeManagerAddress": "far"}
        for n in range(NODES_COUNT)
    ]


class Silent:
    """As `ray.get` of what does not come; adds up how long that was waited for."""

    def __init__(self) -> None:
        self.waited_s = 0.0

    def __call__(self, ref: object, timeout: float) -> None:
        self.waited_s += timeout
        time.sleep(timeout)
        raise exceptions.GetTimeoutError("no answer")


@pytest.mark.parametrize(
    ("module", "check"),
    [
        (memory_probe, check_memory), (staging_probe, check_staging), (probe, check_shared),
        (transport_probe, check_transports), (bucket_probe, check_bucket),
    ],
)  # fmt: skip
def test_all_together_have_the_time_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, check: Callable[[Path], None]
) -> None:
    silent = Silent()
    named = {"nodes": nodes, "get": silent, "exceptions": exceptions}
    for each in {module, probe}:
        monkeypatch.setattr(each, "ray", SimpleNamespace(**named))
        monkeypatch.setattr(each, "ask", lambda *args, **env: None)
        monkeypatch.setattr(each, "PROBE_TIMEOUT_S", TIMEOUT_S)
    began_s = time.monotonic()
    check(tmp_path)
    assert time.monotonic() - began_s >= TIMEOUT_S
    # By what they are given: how long all of it takes is the machine's affair.
    assert silent.waited_s <= 1.01 * TIMEOUT_S


def test_a_node_without_tune_sync_cannot_use_a_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_module(ref: object, timeout: float) -> None:
        missing = ModuleNotFoundError("No module named 'tune_sync'")
        raise exceptions.RayTaskError("_look", "traceback: No module named 'tune_sync'", missing)

    named = {"nodes": nodes, "get": no_module, "exceptions": exceptions}
    for each in (bucket_probe, probe):
        monkeypatch.setattr(each, "ray", SimpleNamespace(**named))
        monkeypatch.setattr(each, "ask", lambda *args, **env: None)
    with pytest.raises(ConfigError, match=f"by {NODES_COUNT} of {NODES_COUNT} nodes") as refused:
        check_bucket(Path())
    assert "No module named 'tune_sync'" in str(refused.value)
