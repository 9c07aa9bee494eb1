"""The driver's node is lost with its disk: other nodes' copies bring the experiment back."""

from __future__ import annotations

import json
import logging
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.searches import wait_for
from tests.local.own_ray import own_ray
from tests.local.test_periods import number_of
from tune_sync import RunConfig, SyncConfig, layout, restore_or_start
from tune_sync.agents.connect import node_id
from tune_sync.agents.refill import refill
from tune_sync.errors import ConfigError
from tune_sync.spec import Options, Spec

STARTS_S, TIMEOUT_S = 90, 180.0
FAR_ENOUGH = 5


@pytest.fixture
def argv(tmp_path: Path) -> list[str]:
    storage, staging = str(tmp_path / "results"), str(tmp_path / "staging")
    return [sys.executable, "-m", "tests.local.drivers.refilled", storage, staging]


@pytest.fixture
def env() -> Iterator[dict[str, str]]:
    """For a driver with a cluster of its own."""
    with own_ray() as found:
        yield found


def copies(staging: Path) -> dict[str, int]:
    """Trial directory -> its newest checkpoint that a node has a copy of."""
    newest: dict[str, int] = {}
    for path in staging.glob("*/*/.tune_sync/staging/*/checkpoint_*"):
        newest[path.parent.name] = max(newest.get(path.parent.name, 0), number_of(path))
    return newest


@pytest.mark.slow
def test_trials_go_on_from_the_copies_of_other_nodes(
    argv: list[str], env: dict[str, str], tmp_path: Path
) -> None:
    """Two clusters, one after the other: the first one is killed with its driver."""
    home, staging = tmp_path / "results" / "x", tmp_path / "staging"

    def is_far_enough() -> bool:
        state = list(staging.glob("*/*/.tune_sync/state/experiment_state-*.json"))
        newest = copies(staging)
        return (
            bool(state)
            and any(home.glob("*/checkpoint_*"))
            and len(newest) == 2
            and min(newest.values()) >= FAR_ENOUGH
        )

    first = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(is_far_enough, "copies on the other node", STARTS_S)
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    begun_by = (home / layout.EXPERIMENT_KEY).read_bytes()
    shutil.rmtree(home)

    done = subprocess.run(
        argv, env=env, text=True, capture_output=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (line,) = (x for x in done.stdout.splitlines() if x.startswith("RESULT "))
    for told in json.loads(line.removeprefix("RESULT ")):
        assert told["resumed_at"] >= FAR_ENOUGH
        assert told["step"] == told["resumed_at"] + 1
        assert told["steps"][-2:] == [told["resumed_at"], told["resumed_at"] + 1]
    assert (home / layout.EXPERIMENT_KEY).read_bytes() == begun_by
    assert "was brought back from another node" in done.stdout + done.stderr


def test_a_node_that_does_not_answer_is_named(
    local_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    monkeypatch.setattr("tune_sync.agents.refill.ANSWER_TIMEOUT_S", 0.0)
    options = Options(staging_dir=str(tmp_path / "staging"))
    with caplog.at_level(logging.WARNING, "ray.tune_sync"):
        assert not refill(Spec("key", str(tmp_path), "x", "0" * 32, None, options))
    assert f"node {node_id()} has not told" in caplog.text


@pytest.mark.parametrize("sync", [{}, {"wait_for": "staged", "upload_dir": "/tmp/far"}])
def test_where_nodes_keep_no_copies_it_is_refused(sync: dict[str, str], tmp_path: Path) -> None:
    where = {} if "upload_dir" in sync else {"storage_path": tmp_path}
    config = RunConfig(name="x", sync_config=SyncConfig(**sync), **where)
    with pytest.raises(ConfigError, match="refill=True"):
        restore_or_start(print, run_config=config, refill=True)
