"""What the transports of replicas are made with on a node."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from tests.stores.seaweed import free_ports
from tune_sync.behind.node_copies import NodeCopies
from tune_sync.behind.replica_door import Door
from tune_sync.behind.replica_transports import names_of, transports_of, wish_of
from tune_sync.behind.replicas import Replicas
from tune_sync.errors import ConfigError, PeerLostError
from tune_sync.spec import Options

RDMA = Options(transport="rdma")
DEVICE, PORT, GID_INDEX = (f"TUNE_SYNC_RDMA_{name}" for name in ("DEVICE", "PORT", "GID_INDEX"))


def test_each_node_says_which_device_it_uses_unless_the_run_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wish = wish_of(RDMA)
    assert (wish.device, wish.port, wish.gid_index) == (None, None, None)
    for name, value in ((DEVICE, "mlx5_1"), (PORT, "2"), (GID_INDEX, "0")):
        monkeypatch.setenv(name, value)
    wish = wish_of(RDMA)
    assert (wish.device, wish.port, wish.gid_index) == ("mlx5_1", 2, 0)
    wish = wish_of(replace(RDMA, rdma_device="mlx5_0", rdma_port=1, rdma_gid_index=3))
    assert (wish.device, wish.port, wish.gid_index) == ("mlx5_0", 1, 3)
    assert str(wish_of(RDMA)) in repr(transports_of(RDMA, bytes(32))[0])


@pytest.mark.parametrize(("name", "value"), [(PORT, "0"), (GID_INDEX, "-1"), (GID_INDEX, "x")])
def test_a_variable_that_cannot_be_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"{name}='{value}': a whole number"):
        transports_of(RDMA, bytes(32))


def test_mooncake_is_taken_by_who_names_it_only() -> None:
    mooncake = Options(transport="mooncake")
    assert names_of(mooncake) == ("mooncake", "tcp")
    assert names_of(replace(mooncake, transport_required=True)) == ("mooncake",)
    assert [transport.name for transport in transports_of(mooncake, bytes(32))] == [
        "mooncake",
        "tcp",
    ]
    for other in ("auto", "rdma", "tcp", "object_store"):
        assert "mooncake" not in names_of(Options(transport=other))


HERE = "127.0.0.1"


def neighbours() -> tuple[socket.socket, int]:
    """A port that is taken, and the one above it, which is free: no other test or program is given
    that meanwhile, as it might be one that the kernel chooses.
    """
    while True:
        port, above = free_ports(2)
        if above == port + 1:
            return socket.create_server((HERE, port)), port


def test_a_door_is_at_the_first_free_port_of_those_it_may_take(tmp_path: Path) -> None:
    replicas = Replicas(
        tmp_path / "disk", None, lambda trial: False, NodeCopies(tmp_path / "disk").remove,
        lambda: True,
    )  # fmt: skip
    taken, port = neighbours()
    options = Options(transport="tcp", ports=(port, port + 1))
    with taken:
        door = Door(str(tmp_path), replicas, HERE, options)
        try:
            assert door.entrance.address == f"{HERE}:{port + 1}"
            with pytest.raises(PeerLostError, match=f"{port}-{port + 1} are taken.*TUNE_SYNC_PORT"):
                Door(str(tmp_path), replicas, HERE, options)
        finally:
            door.close()
