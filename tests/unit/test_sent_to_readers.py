"""What a node that sends its copies to who reads elsewhere says of the way that they take."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError

from tests.unit.test_node_sender import FIRST, SECOND, report
from tune_sync.agents import shared_reads
from tune_sync.agents.shared_reads import ReadService
from tune_sync.behind.node_copies import NodeCopies
from tune_sync.behind.node_disk import NodeDisk
from tune_sync.behind.replicas import Replicas
from tune_sync.errors import HomeLostError
from tune_sync.homes.home import LocalHome
from tune_sync.spec import Options, Spec


def fail(*args: object) -> None:
    raise ActorUnavailableError("it restarts", b"0" * 16)


class Restarting:
    """The agent of a node, while no call gets to it."""

    def __getattr__(self, verb: str) -> Any:
        return SimpleNamespace(remote=fail)


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReadService:
    monkeypatch.setattr(shared_reads, "_agent_of", lambda spec, node: Restarting())
    made = ReadService()
    spec = Spec("sends", "bucket", "exp", "0" * 32, None, Options(transport="tcp"), "memory")
    made._take_readers(spec, "home", None, lambda: LocalHome(tmp_path), lambda: None, fail)
    copies = NodeCopies(tmp_path / "staged")
    made._replicas = Replicas(
        tmp_path / "staged", None, lambda trial: False, copies.remove, lambda: True
    )
    for checkpoint in (FIRST, SECOND):
        report(NodeDisk(tmp_path / "staged"), checkpoint)
    return made


def test_a_fallback_that_lasts_is_warned_of_once_for_each_node(
    service: ReadService, caplog: pytest.LogCaptureFixture
) -> None:
    for node in ("one", "one", "two"):
        for checkpoint in (FIRST, SECOND):
            with pytest.raises(HomeLostError):
                service.send_replica(checkpoint, node, "")
    said = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(said) == 2
    for node, warning in zip(("one", "two"), said, strict=True):
        assert "transport 'tcp' was asked for; 'object_store' is used" in warning
        assert node in warning
