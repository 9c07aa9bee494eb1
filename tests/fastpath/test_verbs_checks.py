"""What is found of RDMA devices in the kernel's files, and what is said of what is missing."""

from __future__ import annotations

import argparse
import importlib.util
import resource
from pathlib import Path

import pytest

from tune_sync.behind.replica_transports import wish_of
from tune_sync.commands.doctor import add_arguments, tell
from tune_sync.errors import ConfigError, TransportMissingError
from tune_sync.fastpath.transports import RdmaTransport, choose
from tune_sync.fastpath.verbs import checks
from tune_sync.fastpath.verbs.checks import Wish, checked_wish, find_port_address, missing
from tune_sync.fastpath.verbs.ports import counters, ports
from tune_sync.spec import Options

V1, V2 = "IB/RoCE v1", "RoCE v2"
NONE = "0000:0000:0000:0000:0000:0000:0000:0000"
LINK_LOCAL = "fe80:0000:0000:0000:5054:00ff:fe12:3456"
GLOBAL = "2001:0db8:0000:0000:0000:0000:0000:0001"
IPV4 = "0000:0000:0000:0000:0000:ffff:0a09:0001"


class Kernel:
    """The files of a host with devices."""

    def __init__(self, folder: Path) -> None:
        self.sys, self.dev = folder / "class", folder / "dev"
        self.dev.mkdir()
        self._count = 0

    def add(
        self, name: str, gids: list[tuple[str, str]], *, state: str = "4: ACTIVE",
        link_layer: str = "Ethernet", uverbs: bool = True,
    ) -> Path:  # fmt: skip
        port = self.sys / "infiniband" / name / "ports/1"
        _write(port / "state", state)
        _write(port / "link_layer", link_layer)
        for index, (address, kind) in enumerate(gids):
            _write(port / "gids" / str(index), address)
            _write(port / "gid_attrs/types" / str(index), kind)
        if uverbs:
            _write(self.sys / f"infiniband_verbs/uverbs{self._count}/ibdev", name)
            (self.dev / f"uverbs{self._count}").touch()
            self._count += 1
        return port

    def missing(self, wish: Wish) -> str:
        return missing(wish, self.sys, self.dev)


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def test_a_host_without_devices_is_told(kernel: Kernel) -> None:
    assert kernel.missing(Wish()).startswith("device: the kernel knows none; this host has no RDMA")
    with pytest.raises(TransportMissingError, match="driver"):
        find_port_address(Wish(), kernel.sys, kernel.dev)


def test_addresses_that_whoever_runs_the_network_set_come_first(kernel: Kernel) -> None:
    kernel.add("mlx5_0", [(LINK_LOCAL, V1), (LINK_LOCAL, V2), (IPV4, V1), (GLOBAL, V2), (IPV4, V2)])
    used = find_port_address(Wish(), kernel.sys, kernel.dev)
    assert (used.gid.index, str(used.gid.address.ipv4_mapped)) == (4, "10.9.0.1")
    assert find_port_address(Wish(gid_index=1), kernel.sys, kernel.dev).gid.index == 1
    with pytest.raises(TransportMissingError, match="no index 2"):
        find_port_address(Wish(gid_index=2), kernel.sys, kernel.dev)


def test_a_device_whose_link_is_down_is_passed_over(kernel: Kernel) -> None:
    kernel.add("mlx5_0", [(IPV4, V2)], state="1: DOWN")
    kernel.add("mlx5_1", [(IPV4, V2)])
    assert find_port_address(Wish(), kernel.sys, kernel.dev).port.device == "mlx5_1"
    assert kernel.missing(Wish(device="mlx5_0")).startswith("link: mlx5_0 port 1 is 1: DOWN")


def test_infiniband_needs_no_ip_address(kernel: Kernel) -> None:
    kernel.add("mlx5_0", [("fe80:0000:0000:0000:506b:4b03:00c0:1a2b", V1)], link_layer="InfiniBand")
    kernel.add("mlx5_1", [(LINK_LOCAL, V2)])
    assert find_port_address(Wish(), kernel.sys, kernel.dev).port.device == "mlx5_0"


def test_a_card_without_an_address_is_named(kernel: Kernel) -> None:
    kernel.add("mlx5_0", [(NONE, V2), (LINK_LOCAL, V1)])
    assert "ip addr add" in kernel.missing(Wish())


def test_a_name_that_is_not_there_is_answered_with_those_that_are(kernel: Kernel) -> None:
    kernel.add("mlx5_0", [(IPV4, V2)])
    assert kernel.missing(Wish(device="mlx5_9")) == (
        "device: mlx5_9 is not there; name one of: mlx5_0 port 1"
    )


def test_a_container_that_is_not_given_the_device_is_told(kernel: Kernel) -> None:
    kernel.add("mlx5_0", [(IPV4, V2)])
    (kernel.dev / "uverbs0").unlink()
    assert "--device=/dev/infiniband" in kernel.missing(Wish())


def test_a_kernel_without_uverbs_is_told(kernel: Kernel) -> None:
    kernel.add("mlx5_0", [(IPV4, V2)], uverbs=False)
    assert "ib_uverbs" in kernel.missing(Wish())


def test_what_the_device_counts_is_read(kernel: Kernel) -> None:
    port = kernel.add("mlx5_0", [(IPV4, V2)])
    _write(port / "hw_counters/rcvd_pkts", "17")
    _write(port / "counters/port_xmit_data", "4")
    _write(port / "counters/broken", "N/A")
    assert counters("mlx5_0", kernel.sys) == {
        "hw_counters/rcvd_pkts": 17, "counters/port_xmit_data": 4,
    }  # fmt: skip
    assert ports(kernel.sys / "nowhere") == [] and counters("none", kernel.sys) == {}


def test_the_doctor_says_what_to_do(kernel: Kernel, capsys: pytest.CaptureFixture[str]) -> None:
    kernel.add("mlx5_0", [(IPV4, V2)], state="1: DOWN")
    assert not tell(Wish(), kernel.sys, kernel.dev)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "ok      device: mlx5_0 port 1",
        f"ok      permission: {kernel.dev}/uverbs0 can be used",
    ]
    assert lines[2] == "MISSING link: mlx5_0 port 1 is 1: DOWN"
    assert lines[3].startswith("        to do: plug the cable in")
    assert lines[-1] == "RDMA cannot be used here"


def test_the_doctor_goes_on_with_all_that_does_not_need_what_is_missing(
    kernel: Kernel, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for a card learns what else to get; the first that fails is what others name."""
    monkeypatch.setattr(checks, "may_lock_all", lambda: False)
    limits = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (4096, limits[1]))
    try:
        assert not tell(Wish(), kernel.sys, kernel.dev)
    finally:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, limits)
    lines = [ln for ln in capsys.readouterr().out.splitlines() if not ln.startswith("   ")]
    assert [line[:7].strip() + line[7:].partition(":")[0] for line in lines[:-1]] == [
        "MISSING device", "- permission", "- link", "- address", "ok extra", "- provider",
        "MISSING lockable memory", "- write to itself",
    ]  # fmt: skip
    assert lines[1] == "-       permission: not looked at, as it needs: device"
    assert kernel.missing(Wish()).startswith("device: ")


def test_the_library_is_looked_at_though_the_link_is_down(kernel: Kernel) -> None:
    kernel.add("mlx5_0", [(IPV4, V2)], state="1: DOWN")
    kernel.add("mlx5_1", [(IPV4, V2)], state="1: DOWN")
    found = {c.name: c for c in checks.checks(Wish(device="mlx5_1"), kernel.sys, kernel.dev)}
    assert not found["provider"].needs
    assert checks.likely_device(ports(kernel.sys, kernel.dev), Wish(device="mlx5_1")) == "mlx5_1"


def test_nothing_is_done_after_what_failed_by_who_only_wants_to_know_whether(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "lockable", lambda wish: pytest.fail("it was looked at"))
    assert kernel.missing(Wish()).startswith("device: ")


def test_a_wish_that_cannot_be_is_refused() -> None:
    for wrong in (Wish(port=0), Wish(gid_index=-1)):
        with pytest.raises(ConfigError):
            checked_wish(wrong)


def test_the_extra_is_there_for_the_tests() -> None:
    assert importlib.util.find_spec("ibverbs"), "install it: pip install '.[dev]'"


def test_a_host_without_rdma_takes_another_transport_and_says_so() -> None:
    transport = RdmaTransport(b"the token of one run", wish=Wish(device="none_0"))
    with pytest.raises(TransportMissingError, match="device"):
        choose("rdma", [transport], required=True)
    assert "rdma: device" in choose("auto", [transport]).fallback_reason


def test_the_doctor_asks_for_as_much_lockable_memory_as_a_run() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    lock_bytes = parser.parse_args([]).lock
    assert lock_bytes == wish_of(Options()).lock_bytes
    assert f"({lock_bytes >> 20}MiB)" in parser.format_help()
