"""Where a node cannot stage, that is told before training starts; what breaks later, by reports."""

from __future__ import annotations

import logging
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import tune

from tests.hosts.drivers.trainables import train_n
from tests.local.test_transports import here, never_runs
from tune_sync import RunConfig, SyncConfig
from tune_sync.agents import staging_probe
from tune_sync.agents.connect import node_id
from tune_sync.agents.staging_probe import check_staging
from tune_sync.behind.staging_roots import Trouble
from tune_sync.errors import ConfigError
from tune_sync.fastpath import FastPath
from tune_sync.spec import Address, Options, Spec

pytestmark = pytest.mark.usefixtures("local_ray")

NOWHERE = "/proc/nosuch"


@pytest.mark.parametrize("fields", [{"wait_for": "staged"}, {"on_sync_error": "continue"}])
def test_a_node_that_cannot_have_the_directory_is_refused_before_training(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    sync = SyncConfig(upload_dir=tmp_path, staging_dir=NOWHERE, **fields)
    config = RunConfig(name="x", verbose=0, sync_config=sync)
    with pytest.raises(ConfigError, match="no directory can be made in /proc") as refused:
        tune.Tuner(never_runs, run_config=config).fit()
    said = str(refused.value)
    assert said.startswith(f"SyncConfig(staging_dir=...): {here()}: {NOWHERE} cannot be made")
    assert said.endswith("give another staging_dir")


def breaks_it(config: dict[str, Any]) -> None:
    shutil.rmtree(config["staging"], ignore_errors=True)
    Path(config["staging"]).touch()
    train_n(config)


def test_what_breaks_later_fails_the_trial_and_names_the_node(tmp_path: Path) -> None:
    staging = tmp_path / "staging"
    sync = SyncConfig(upload_dir=tmp_path / "far", wait_for="staged", staging_dir=staging)
    config = RunConfig(name="x", verbose=0, sync_config=sync)
    space = {"staging": str(staging)}
    (error,) = tune.Tuner(breaks_it, run_config=config, param_space=space).fit().errors
    assert f"{staging} is no directory; give another staging_dir (this is node" in str(error)


def test_only_where_something_is_staged_is_it_looked_at() -> None:
    options = Options(staging_dir=NOWHERE, wait_for="staged")
    home = Address(node_id(), "")
    spec = Spec("key", "/results", "x", "", home, options)
    check_staging(spec)  # on the home node itself, nothing is
    check_staging(replace(spec, options=replace(options, shared=True, wait_for="stored")))
    elsewhere = Address("another", "")
    for staged in (
        replace(spec, scheme="s3"),
        replace(spec, options=replace(options, shared=True)),
        replace(spec, options=replace(options, memory_dir="/dev/shm")),
        replace(spec, address=elsewhere),
    ):
        with pytest.raises(ConfigError, match=NOWHERE):
            check_staging(staged)


def test_nothing_stays_of_the_look(tmp_path: Path) -> None:
    options = Options(staging_dir=str(tmp_path / "new" / "staging"), wait_for="staged")
    check_staging(Spec("key", "/results", "x", "s3", None, options))
    assert not list(tmp_path.iterdir())


NOT_WRITABLE = "/sys/below"  # also for root


def test_where_memory_is_first_a_disk_that_cannot_be_written_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither does the run need it: what is reported is all there."""
    sync = SyncConfig(
        upload_dir=tmp_path / "far", wait_for="staged", staging_dir=NOT_WRITABLE,
        fast_path=FastPath(memory_limit=64 << 20),
    )  # fmt: skip
    config = RunConfig(name="x", verbose=0, sync_config=sync)
    with caplog.at_level(logging.WARNING):
        results = tune.Tuner(train_n, run_config=config).fit()
    assert f"{here()}: {NOT_WRITABLE} cannot be written to by uid" in caplog.text
    assert "what finds no room in memory there goes to its destination" in caplog.text
    assert not results.errors and results[0].checkpoint is not None
    assert any((tmp_path / "far" / "x").glob("*/checkpoint_*"))


def test_what_is_reported_on_a_node_whose_disk_cannot_be_written_goes_to_its_destination(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_probe, "trial_nodes", list)
    sync = SyncConfig(upload_dir=tmp_path / "far", wait_for="staged", staging_dir=NOT_WRITABLE)
    config = RunConfig(name="x", verbose=0, sync_config=sync)
    results = tune.Tuner(train_n, run_config=config).fit()
    assert not results.errors and results[0].checkpoint is not None
    assert any((tmp_path / "far" / "x").glob("*/checkpoint_*"))


def test_one_that_no_node_can_write_is_refused_without_memory() -> None:
    options = Options(staging_dir=NOT_WRITABLE, wait_for="staged")
    with pytest.raises(ConfigError, match=f"{NOT_WRITABLE} cannot be written to"):
        check_staging(Spec("key", "/results", "x", "s3", None, options))


def test_one_node_that_cannot_stage_is_warned_of_as_it_may_run_no_trial(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (this,) = ray.nodes()
    bad = {**this, "NodeID": "no-trials-here"}
    troubles = {bad["NodeID"]: Trouble("it is read-only", False), this["NodeID"]: None}
    monkeypatch.setattr(staging_probe, "ask", lambda look, at, node: ray.put(troubles[node]))
    options = Options(staging_dir="/scratch", wait_for="staged")
    spec = Spec("key", "/results", "x", "s3", None, options)
    monkeypatch.setattr(ray, "nodes", lambda: [bad, this])
    with caplog.at_level(logging.WARNING):
        check_staging(spec)
    assert "node no-trials-here" in caplog.text and "it is read-only" in caplog.text
    assert caplog.text.count("staging_dir") == 1
    troubles[this["NodeID"]] = Trouble("it is a file", True)
    with pytest.raises(ConfigError, match=r"no-trials-here .*: it is read-only"):
        check_staging(spec)


def hangs(staging_dir: str, node_id: str) -> None:
    while not os.path.exists(staging_dir):
        time.sleep(0.05)


def test_a_node_that_does_not_answer_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(staging_probe, "PROBE_TIMEOUT_S", 1.0)
    monkeypatch.setattr(staging_probe, "_look", hangs)
    options = Options(staging_dir=str(tmp_path / "end"), wait_for="staged", shared=True)
    with caplog.at_level(logging.WARNING):
        check_staging(Spec("key", "/results", "x", "", None, options))
    (tmp_path / "end").touch()
    assert f"{here()}: its staging directory cannot be looked at" in caplog.text
    assert ray.is_initialized()
