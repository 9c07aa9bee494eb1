"""What users set of the fast path, in the call or in the environment."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fastpath.certificates import make_certificates
from tune_sync import FastPath
from tune_sync.errors import ConfigError
from tune_sync.fastpath import Tls
from tune_sync.fastpath.sizing import shortage

TRANSPORT, REQUIRED = "TUNE_SYNC_TRANSPORT", "TUNE_SYNC_TRANSPORT_REQUIRED"
LIMIT, COUNT = "TUNE_SYNC_MEMORY_LIMIT", "TUNE_SYNC_MAX_CHECKPOINTS_IN_MEMORY"


def test_what_is_not_given_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert FastPath() == FastPath(memory_limit=None, max_checkpoints_in_memory=2)
    monkeypatch.setenv(LIMIT, "1000")
    monkeypatch.setenv(COUNT, "5")
    assert FastPath() == FastPath(memory_limit=1000, max_checkpoints_in_memory=5)
    given = FastPath(memory_limit=7, max_checkpoints_in_memory=1)
    assert (given.memory_limit, given.max_checkpoints_in_memory) == (7, 1)


@pytest.mark.parametrize("name", [LIMIT, COUNT])
@pytest.mark.parametrize("value", ["8G", "-1", "0", "1.5", " ", "\u0663"])
def test_a_bad_variable_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"{name}=.*above zero"):
        FastPath()


@pytest.mark.parametrize("name", ["memory_limit", "max_checkpoints_in_memory"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "1", True])
def test_a_bad_field_is_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"FastPath\({name}=.*above zero"):
        FastPath(**{name: value})


def test_a_transport_comes_from_the_call_or_else_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = FastPath()
    assert (plain.wanted_transport, plain.is_transport_required) == ("auto", False)
    monkeypatch.setenv(TRANSPORT, "tcp")
    monkeypatch.setenv(REQUIRED, "1")
    by_environment = FastPath()
    assert (by_environment.wanted_transport, by_environment.is_transport_required) == ("tcp", True)
    assert by_environment.given_for_replicas == [], "the environment is for those who replicate"
    given = FastPath(transport="object_store", required=False)
    assert (given.wanted_transport, given.is_transport_required) == ("object_store", False)
    assert given.given_for_replicas == ["transport", "required"]


@pytest.mark.parametrize("name", ["infiniband", "object store", "TCP", "", 1, True])
def test_a_transport_that_is_none_is_refused_with_those_there_are(name: Any) -> None:
    with pytest.raises(
        ConfigError, match='"auto", "rdma", "mooncake", "tcp", "object_store"'
    ) as raised:
        FastPath(transport=name)
    assert f"transport={name!r}" in str(raised.value)


@pytest.mark.parametrize("value", [1, "yes", 0])
def test_required_is_a_flag(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"FastPath\(required=.*True or False"):
        FastPath(required=value)


def test_bad_variables_of_transports_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TRANSPORT, "udp")
    with pytest.raises(
        ConfigError, match=f"{TRANSPORT}='udp': give one of auto, rdma, mooncake, tcp, object"
    ):
        FastPath()
    assert FastPath(transport="tcp").wanted_transport == "tcp"
    monkeypatch.setenv(TRANSPORT, "")
    monkeypatch.setenv(REQUIRED, "true")
    with pytest.raises(ConfigError, match=f"{REQUIRED}='true': give 1 or 0"):
        FastPath()


def test_files_for_tls_are_named_by_paths_that_every_node_understands() -> None:
    files = {name: Path(f"/etc/{name}.pem") for name in ("certificate", "key", "authority")}
    assert FastPath(tls=Tls(**files)).given_for_replicas == ["tls"]
    for name in files:
        with pytest.raises(ConfigError, match=f"{name}='here.pem' has to be an absolute path"):
            FastPath(tls=Tls(**{**files, name: Path("here.pem")}))
    with pytest.raises(ConfigError, match="Tls is needed"):
        FastPath(tls=True)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match='leave tls out, or give transport="tcp"'):
        FastPath(tls=Tls(**files), transport="object_store")


def test_a_device_is_named_for_every_node() -> None:
    made = FastPath(rdma_device="mlx5_0", rdma_port=1, rdma_gid_index=0)
    assert made.given_for_replicas == ["rdma_device", "rdma_port", "rdma_gid_index"]


@pytest.mark.parametrize(
    "wrong",
    [{"rdma_device": ""}, {"rdma_device": 0}, {"rdma_port": 0}, {"rdma_gid_index": -1},
     {"rdma_gid_index": True}],
)  # fmt: skip
def test_a_device_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ConfigError, match=rf"FastPath\({name}=.* is needed"):
        FastPath(**wrong)


@pytest.mark.parametrize(
    "unused",
    [{"transport": "tcp", "rdma_device": "mlx5_0"}, {"transport": "object_store", "rdma_port": 1},
     {"transport": "object_store", "ports": "7700-7799"}],
)  # fmt: skip
def test_what_the_transport_does_nothing_with_is_refused(unused: dict[str, Any]) -> None:
    (name,) = set(unused) - {"transport"}
    with pytest.raises(ConfigError, match=f"does nothing with {name}"):
        FastPath(**unused)
    assert FastPath(**{name: unused[name]}).given_for_replicas == [name]


def test_ports_come_from_the_call_or_else_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert FastPath().port_range == ()
    monkeypatch.setenv("TUNE_SYNC_PORTS", "7700-7799")
    assert FastPath().port_range == (7700, 7799)
    assert FastPath().given_for_replicas == []
    given = FastPath(ports="1024")
    assert (given.port_range, given.given_for_replicas) == ((1024, 1024), ["ports"])


@pytest.mark.parametrize("ports", ["", "0", "65536", "9-8", "1-", "-1", "1,2", " 1", "\u0663", 1])
def test_ports_that_are_none_are_refused(ports: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"FastPath\(ports=.*a range of ports is needed"):
        FastPath(ports=ports)
    if ports and isinstance(ports, str):
        monkeypatch.setenv("TUNE_SYNC_PORTS", ports)
        with pytest.raises(ConfigError, match=r"TUNE_SYNC_PORTS=.*a range of ports is needed"):
            FastPath()


def test_it_survives_a_pickle_and_needs_no_ray() -> None:
    made = FastPath(memory_limit=7)
    assert pickle.loads(pickle.dumps(made)) == made
    code = "import sys; from tune_sync.fastpath import FastPath; print('ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


GIB = 1 << 30


@pytest.mark.parametrize(
    ("limit_bytes", "free_bytes", "total_bytes", "store_bytes", "is_short"),
    [
        (8 * GIB, 10 * GIB, 10 * GIB, 0, False),
        (9 * GIB, 10 * GIB, 10 * GIB, 0, True),
        (8 * GIB, 10 * GIB, 10 * GIB, GIB, True),
        (8 * GIB, 9 * GIB, 10 * GIB, 0, True),
        (0, 64 << 20, 64 << 20, 0, True),
        (0, GIB, GIB, 0, False),
    ],
)
def test_memory_that_is_too_small_is_said_with_a_size_that_is_not(
    limit_bytes: int, free_bytes: int, total_bytes: int, store_bytes: int, is_short: bool
) -> None:
    said = shortage(limit_bytes, free_bytes, total_bytes, store_bytes)
    assert bool(said) == is_short
    if is_short:
        size_bytes = int(said.partition("--shm-size=")[2].partition("m")[0]) << 20
        used_bytes = total_bytes - free_bytes
        assert not shortage(limit_bytes, size_bytes - used_bytes, size_bytes, store_bytes)


@pytest.mark.parametrize("is_server", [True, False])
def test_a_key_with_a_pass_phrase_is_refused_and_nobody_is_asked(
    tmp_path: Path, is_server: bool
) -> None:
    plain, locked = make_certificates(tmp_path), tmp_path / "locked.key"
    command = ["openssl", "pkey", "-aes256", "-passout", "pass:secret", "-in", plain.key]
    subprocess.run([*command, "-out", locked], check=True, capture_output=True)
    with pytest.raises(ConfigError, match=r"locked\.key has a pass phrase"):
        replace(plain, key=locked).context(is_server=is_server)
