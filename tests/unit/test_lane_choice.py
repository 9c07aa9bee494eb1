"""Which lane replicas take, and what is said of the others."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fastpath.certificates import make_certificates
from tests.unit.test_replica_intake import ATTEMPT, CHECKPOINT, WAIT_S, key
from tune_sync.agents.replica_home import ObjectStoreLane
from tune_sync.behind import lane_choice, replica_door
from tune_sync.behind.lane_choice import LaneChoice
from tune_sync.behind.node_copies import NodeCopies
from tune_sync.behind.replica_door import Door, Entrance
from tune_sync.behind.replica_lane import ReplicaLane
from tune_sync.behind.replica_message import Message
from tune_sync.behind.replicas import Replicas
from tune_sync.errors import HomeLostError, PeerLostError, TransportMissingError
from tune_sync.fastpath.transports import Limits, TcpTransport, Transport
from tune_sync.spec import Options

pytestmark = pytest.mark.in_shared_memory

AUTO, TCP, RDMA = (Options(transport=name) for name in ("auto", "tcp", "rdma"))
SOON = Limits(connect_timeout_s=0.5, stall_timeout_s=0.5)


def required(options: Options) -> Options:
    return replace(options, transport_required=True)


class Place:
    """A node with a door."""

    def __init__(self, base: Path, options: Options) -> None:
        root = base / "disk"
        self.replicas = Replicas(
            root, None, lambda trial: False, NodeCopies(root).remove, lambda: True
        )
        self.door = Door(str(base), self.replicas, "127.0.0.1", options)

    def choose(self, options: Options, **more: Any) -> ReplicaLane:
        return choose(options, lambda: self.door.entrance, **more)


def choose(options: Options, knock: Any, **more: Any) -> ReplicaLane:
    return LaneChoice(
        options, knock, lambda attempt, by: by, ObjectStoreLane(None), WAIT_S, **more
    ).lane()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path, AUTO)
    yield made
    made.door.close()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


class Pinning(TcpTransport):
    """Stands for RDMA: as TCP, but that bytes go another way, on which `fault` ends them."""

    name, pins = "rdma", True
    fault: Exception | None = None

    def missing(self) -> str:
        return ""

    def register(self, memory: Any) -> Any:
        if self.fault is not None:
            raise self.fault
        return super().register(memory)


@pytest.fixture
def pinning(monkeypatch: pytest.MonkeyPatch) -> type[Pinning]:
    """Both sides have it; the other side's memory serves it as TCP."""

    class Made(Pinning):
        registered: list[int] = []

        def register(self, memory: Any) -> Any:
            region = super().register(memory)
            self.registered.append(len(region.view))
            return region

    def transports(options: Options, token: bytes) -> Sequence[Transport]:
        return [Made(token), TcpTransport(token)]

    for module in (lane_choice, replica_door):
        monkeypatch.setattr(module, "transports_of", transports)
    return Made


def test_the_best_that_both_have_is_taken(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    lane = place.choose(AUTO)
    assert lane.name == "tcp"
    assert warnings(caplog) == [], "no hardware is no fallback"
    lane.close()


def test_what_was_named_and_is_not_there_is_warned_of_with_the_reason(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    lane = place.choose(RDMA)
    (warning,) = warnings(caplog)
    assert warning.startswith("transport 'rdma' was asked for; 'tcp' is used (rdma, on the other")
    assert "device: the kernel knows none" in warning
    lane.close()


def test_what_is_required_and_is_not_there_is_an_error(place: Place, tmp_path: Path) -> None:
    with pytest.raises(TransportMissingError, match=r"'rdma' is required.*the kernel knows none"):
        place.choose(required(RDMA))
    with pytest.raises(TransportMissingError, match="the kernel knows none"):
        Door(str(tmp_path), place.replicas, "127.0.0.1", required(RDMA))

    def knock() -> Entrance:
        raise TransportMissingError("no such thing")

    with pytest.raises(TransportMissingError, match="on the other node: no such thing"):
        choose(required(TCP), knock)


def test_the_object_store_asks_for_no_door(caplog: pytest.LogCaptureFixture) -> None:
    def knock() -> Entrance:
        raise AssertionError("it would open a port")

    assert choose(required(Options(transport="object_store")), knock).name == "object_store"
    assert warnings(caplog) == []


@pytest.fixture
def blocked(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Entrance]:
    """A door that nobody gets to: what is sent there vanishes."""
    with socket.create_server(("127.0.0.1", 0), backlog=1) as listener:
        address = "{}:{}".format(*listener.getsockname())
        monkeypatch.setattr(
            lane_choice, "transports_of", lambda o, token: [TcpTransport(token, limits=SOON)]
        )
        yield replace(place.door.entrance, address=address)


def test_a_blocked_port_is_named_and_the_object_store_is_used(
    blocked: Entrance, caplog: pytest.LogCaptureFixture
) -> None:
    assert choose(TCP, lambda: blocked).name == "object_store"
    (warning,) = warnings(caplog)
    assert "'tcp' was asked for; 'object_store' is used (tcp: " in warning
    assert blocked.address in warning


@pytest.mark.parametrize("options", [TCP, AUTO])
def test_a_blocked_port_is_an_error_if_it_is_required(blocked: Entrance, options: Options) -> None:
    with pytest.raises(PeerLostError, match="is required") as raised:
        choose(required(options), lambda: blocked)
    assert blocked.address in str(raised.value)


def test_an_agent_that_does_not_answer_is_its_own_error_if_a_transport_is_required(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def knock() -> Entrance:
        raise HomeLostError("it died\nof that")

    with pytest.raises(HomeLostError):
        choose(required(TCP), knock)
    assert choose(TCP, knock).name == "object_store"
    assert "'object_store' is used (it died)" in warnings(caplog)[0]


def test_a_device_through_which_nothing_gets_is_not_taken(
    place: Place, pinning: type[Pinning], caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setattr(pinning, "fault", PeerLostError("no packet arrives"))
    door = Door(str(tmp_path), place.replicas, "127.0.0.1", AUTO)
    lane = choose(AUTO, lambda: door.entrance)
    assert lane.name == "tcp"
    (warning,) = warnings(caplog)
    assert "'auto' was asked for; 'tcp' is used (rdma: no packet arrives)" in warning
    lane.close()
    door.close()


def test_what_worked_before_and_is_missing_now_is_told(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    lane = place.choose(AUTO, before="rdma")
    assert "'tcp' is used" in warnings(caplog)[0]
    lane.close()


def test_where_memory_is_pinned_messages_go_from_the_same(
    place: Place, pinning: type[Any], tmp_path: Path
) -> None:
    door = Door(str(tmp_path), place.replicas, "127.0.0.1", AUTO)
    lane = choose(AUTO, lambda: door.entrance)
    assert lane.name == "rdma" and lane.flush(ATTEMPT) == "rdma"
    place.replicas.begin(CHECKPOINT, ATTEMPT, {}, "disk")
    proof_count = len(pinning.registered)
    for at in range(3):
        lane.send(ATTEMPT, Message.of_chunk(key("file"), 4 * at, 4), memoryview(b"abcd"))
    assert door.intake.flush(ATTEMPT, WAIT_S) == 12
    assert len(pinning.registered) == proof_count + 1
    lane.close()
    door.close()


def test_tls_is_on_both_ends_and_rdma_is_not_taken_with_it(place: Place, tmp_path: Path) -> None:
    options = replace(AUTO, tls=make_certificates(tmp_path).paths)
    door = Door(str(tmp_path), place.replicas, "127.0.0.1", options)
    assert list(door.entrance.lacks) == ["tcp"]
    lane = choose(options, lambda: door.entrance)
    place.replicas.begin(CHECKPOINT, ATTEMPT, {}, "disk")
    lane.send(ATTEMPT, Message.of_chunk(key("file"), 0, 4), b"abcd")
    assert door.intake.flush(ATTEMPT, WAIT_S) == 4
    lane.close()
    with pytest.raises(PeerLostError, match="TLS"):
        choose(required(AUTO), lambda: door.entrance)
    with pytest.raises(TransportMissingError, match=r"here: /no/key, .*cannot be read"):
        choose(replace(required(AUTO), tls=(options.tls[0], "/no/key", "/no/authority")),
               lambda: door.entrance)  # fmt: skip
    door.close()
