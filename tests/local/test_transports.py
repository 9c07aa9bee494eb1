"""What nodes lack for the transport that is wanted is told before training starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import ray
from ray import tune

from tests.fastpath.certificates import make_certificates
from tune_sync import FastPath, RunConfig, SyncConfig
from tune_sync.agents.connect import node_id
from tune_sync.agents.transport_probe import check_transports
from tune_sync.errors import ConfigError, TransportMissingError
from tune_sync.spec import Options

pytestmark = pytest.mark.usefixtures("local_ray")


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(replicates=True, memory_dir=str(tmp_path), transport="tcp")


def never_runs(config: dict[str, object]) -> None:
    raise AssertionError("training began")


def here() -> str:
    return f"node {node_id()} ({ray.util.get_node_ip_address()})"


def test_a_device_that_is_required_and_not_there_is_refused_before_training(
    tmp_path: Path,
) -> None:
    path = FastPath(transport="rdma", required=True)
    sync = SyncConfig(wait_for="replicated", fast_path=path)
    config = RunConfig(name="exp", sync_config=sync, storage_path=str(tmp_path))
    with pytest.raises(TransportMissingError, match="'rdma' is required") as refused:
        tune.Tuner(never_runs, run_config=config).fit()
    for part in (here(), "device: the kernel knows none", "do not require it"):
        assert part in str(refused.value)


def test_one_that_is_only_wanted_is_warned_of(
    options: Options, caplog: pytest.LogCaptureFixture
) -> None:
    check_transports(replace(options, transport="rdma"), node_id())
    said = f"transport 'rdma' was asked for; 'tcp' is used to and from {here()}: device: "
    assert said in caplog.text


def test_a_variable_of_a_node_that_cannot_be_is_named_with_it(options: Options) -> None:
    wanted = replace(options, transport="rdma", transport_required=True)
    with pytest.raises(TransportMissingError) as refused:
        check_transports(replace(wanted, rdma_port=-1), node_id())
    assert f"{here()}: Wish(device=None, port=-1" in str(refused.value)


@pytest.mark.parametrize("name", ["auto", "tcp", "object_store"])
def test_what_is_there_is_not_spoken_of(
    options: Options, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    check_transports(replace(options, transport=name, transport_required=True), node_id())
    assert not caplog.records


def test_a_file_for_tls_that_is_not_there_is_named_with_its_node(
    options: Options, tmp_path: Path
) -> None:
    tls = make_certificates(tmp_path)
    check_transports(replace(options, tls=tls.paths), node_id())
    tls.key.unlink()
    with pytest.raises(ConfigError, match=r"FastPath\(tls=\.\.\.\)") as refused:
        check_transports(replace(options, tls=tls.paths), node_id())
    assert f"{here()}: {tls.key}, " in str(refused.value)
    tls.key.write_text("no key")
    with pytest.raises(ConfigError, match="give files in PEM format"):
        check_transports(replace(options, tls=tls.paths), node_id())
