"""A restore waits for what nodes still have as long as that gets on, and no longer."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_left_behind import NODE, OWNER, leave, recovered
from tests.unit.test_node_sender import FIRST, SECOND, Shaky
from tune_sync.agents import left_on_nodes
from tune_sync.agents.left_on_nodes import Wanted, send_left_behind
from tune_sync.behind.left_behind import find
from tune_sync.spec import Options, Spec

TIMEOUT_S, SHORT_S = 1.0, 2.0
# What takes longer than one step is patience with a busy machine; all steps take longer than that.
STEP_S, PATIENT_S = 5.0, 17.0
WANTED = Wanted(frozenset(), {"t": ""})


class Slow(Shaky):
    """Each attempt takes a while."""

    def begin(self, checkpoint: str) -> str:
        time.sleep(STEP_S)
        return super().begin(checkpoint)


class Reached:
    """Reaches the destination, or hangs, as a disk does."""

    def __init__(self, root: Path, *, hangs: bool = False) -> None:
        self._root, self._hangs = root, hangs

    def home(self, spec: Spec) -> Any:
        while self._hangs:
            time.sleep(1.0)
        return Slow(self._root)


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spec:
    monkeypatch.setattr(left_on_nodes, "LATE_S", PATIENT_S)
    options = Options(
        staging_dir=str(tmp_path / "staging"), memory_dir=str(tmp_path), timeout_s=TIMEOUT_S
    )
    return Spec("key", "bucket/results", "exp", "1" * 32, None, options, "s3")


@pytest.mark.usefixtures("local_ray")
def test_a_node_whose_disk_hangs_is_not_waited_for_and_keeps_what_it_has(
    tmp_path: Path, spec: Spec, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = tmp_path / "staging"
    leave(staging / OWNER / NODE, FIRST)
    with monkeypatch.context() as soon, caplog.at_level(logging.WARNING, "ray.tune_sync"):
        soon.setattr(left_on_nodes, "LATE_S", SHORT_S)
        assert send_left_behind(spec, Reached(tmp_path / "home", hangs=True), WANTED) == []
    assert "may keep what an earlier run has left there: nothing has moved there for 3 s" in (
        caplog.text
    )
    end_s = time.monotonic() + 150.0
    while not is_free(staging):  # its process was ended, and does nothing late
        assert time.monotonic() < end_s
        time.sleep(0.1)
    assert send_left_behind(spec, Reached(tmp_path / "home"), WANTED) == [FIRST]


@pytest.mark.usefixtures("local_ray")
def test_a_node_is_waited_for_as_long_as_it_gets_on(tmp_path: Path, spec: Spec) -> None:
    checkpoints = [FIRST, SECOND, "t/checkpoint_000002", "t/checkpoint_000003"]
    leave(tmp_path / "staging" / OWNER / NODE, *checkpoints)
    assert STEP_S * len(checkpoints) > TIMEOUT_S + left_on_nodes.LATE_S
    assert send_left_behind(spec, Reached(tmp_path / "home"), WANTED) == checkpoints
    assert sorted(recovered(Shaky(tmp_path / "home"))) == checkpoints


def is_free(staging: Path) -> bool:
    (left,) = find(staging)
    with left.taken() as is_free:
        return is_free
