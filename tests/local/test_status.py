"""`tune_sync.status` of a run that goes on, asked by its own process and by others."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import ray

import tune_sync
from tests.local.halting import eventually, halting
from tests.local.trainables import HALF, HALT_BYTES
from tune_sync.errors import ConfigError

TIMEOUT_S = 150.0


@pytest.mark.lowest
def test_a_run_is_found_by_name_and_path_from_any_process(local_ray: None, tmp_path: Path) -> None:
    where = str(tmp_path / "results" / "found")
    with halting(tmp_path, "stored", "found"):
        here = tune_sync.status("found")
        elsewhere = ray.get(ray.remote(tune_sync.status).remote("found"))
        for status in (here, elsewhere, tune_sync.status(where)):
            assert (status.where, status.is_running, status.stored_count) == (where, True, HALF)
            assert f"process {os.getpid()} " in status.driver
            assert (status.nodes, status.failed, status.error) == ((), {}, "")
    ended = tune_sync.status("found")
    assert (ended.is_running, ended.stored_count) == (False, 2 * HALF)


@pytest.mark.lowest_slow
def test_what_is_staged_is_told_node_by_node_until_it_is_stored(
    local_ray: None, tmp_path: Path
) -> None:
    with halting(tmp_path, "staged", "staged") as run:
        with run.refusing():
            run.go_on()
            eventually(lambda: tune_sync.status("staged").staged_count == HALF)
            eventually(
                lambda: any("checkpoint_" in n.error for n in tune_sync.status("staged").nodes)
            )
            status = ray.get(ray.remote(tune_sync.status).remote(run.root))
            assert (status.stored_count, status.is_running) == (HALF, True)
            assert HALF * HALT_BYTES <= status.staged_bytes < (HALF + 1) * HALT_BYTES
            (node,) = status.nodes
            assert node.node == ray.get_runtime_context().get_node_id()
            assert node.host == ray.util.get_node_ip_address()
            assert (node.stored_count, node.failed_count) == (HALF, 0)
            assert node.stored_bytes >= HALF * HALT_BYTES
            assert 0 < status.oldest_unstored_s < TIMEOUT_S
        run.wait_until_stored(2 * HALF)
        eventually(lambda: tune_sync.status("staged").staged_count == 0)
        assert tune_sync.status("staged").oldest_unstored_s == 0
    ended = tune_sync.status("staged")
    assert (ended.is_running, ended.stored_count) == (False, 2 * HALF)


def test_another_driver_of_the_cluster_sees_it_by_the_command(
    local_ray: None, tmp_path: Path
) -> None:
    env = {**os.environ, "PYTHONPATH": os.getcwd()}
    env["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    with halting(tmp_path, "stored", "seen"):
        argv = [sys.executable, "-m", "tune_sync.cli", "status", "seen"]
        done = subprocess.run(
            argv, env=env, text=True, capture_output=True, timeout=TIMEOUT_S, check=False
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].startswith(f"  stored: {HALF} checkpoints, the newest ")
    assert f"results/seen: running, process {os.getpid()} " in done.stdout


@pytest.mark.parametrize("is_silent", [True, False])
def test_what_is_stored_is_told_without_a_cluster_and_none_is_started(
    local_ray: None, tmp_path: Path, is_silent: bool
) -> None:
    """One that accepts connections and never says a word; and what makes Ray start one."""
    with halting(tmp_path, "stored", "alone") as run, socket.create_server(("", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}" if is_silent else "local"
        env = {**os.environ, "RAY_ADDRESS": address, "RAY_TMPDIR": str(tmp_path / "ray")}
        argv = [sys.executable, "-m", "tune_sync.cli", "status", "--wait", "1", str(run.root)]
        done = subprocess.run(
            argv, env=env, text=True, capture_output=True, timeout=TIMEOUT_S, check=False
        )
    assert done.returncode == 0, done.stderr
    assert f"  stored: {HALF} checkpoints" in done.stdout
    said = f"RAY_ADDRESS={address} does not answer within 1 s"
    assert (said in done.stderr) == is_silent
    assert not (tmp_path / "ray").exists()


def test_a_name_that_nobody_has_or_that_several_have_is_refused(
    local_ray: None, tmp_path: Path
) -> None:
    with pytest.raises(FileNotFoundError, match="no run on this cluster has that name"):
        tune_sync.status("nobody-has-it")
    one, two = tmp_path / "one", tmp_path / "two"
    with halting(one, "stored", "twice"), halting(two, "stored", "twice"):
        with pytest.raises(ConfigError, match=r"one/results/twice, .*two/results/twice"):
            tune_sync.status("twice")
        assert tune_sync.status(two / "results/twice").is_running
