"""What is said where Mooncake cannot be used, and that it takes nothing else in silence."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from tests.fastpath.test_verbs_checks import IPV4, V2, Kernel
from tune_sync.commands.doctor import tell
from tune_sync.errors import ConfigError, DamagedError, StoreError, TransportMissingError
from tune_sync.fastpath.mooncake_engine import (
    Engine,
    EngineMemory,
    Target,
    keep_from_children,
    missing,
)
from tune_sync.fastpath.transports import MooncakeTransport, TcpTransport, choose
from tune_sync.fastpath.transports.mooncake_lane import MooncakeRegion
from tune_sync.fastpath.verbs.checks import ANY, Wish

TOKEN = b"the token of one run"
HERE = "127.0.0.1"
START = "from tune_sync.fastpath.mooncake_engine import ANY, Engine; Engine('127.0.0.1', ANY)"


def start(code: str = START, **environment: str) -> str:
    """Why an engine does not start in another process, which reads its environment once."""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True,
        text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    return done.stderr.splitlines()[-1]


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


def test_without_a_card_it_does_not_take_tcp() -> None:
    if not missing():
        pytest.fail("this test is for a host without RDMA")
    assert "TransportMissingError: Mooncake's engine does not start with the RDMA dev" in start()


@pytest.mark.parametrize(
    ("name", "value"), [("MC_FORCE_TCP", "1"), ("MC_RETRY_CNT", "9"), ("MC_USE_TENT", "1")]
)
def test_who_tells_it_otherwise_is_told(name: str, value: str) -> None:
    said = start(**{name: value})
    assert f"TransportMissingError: Mooncake cannot be used in this process: settings: {name}" in (
        said.replace("Mooncake is told otherwise by ", "")
    )


def test_a_process_that_uses_it_with_other_settings_is_told() -> None:
    said = start(f"import mooncake.engine; {START}")
    assert "told otherwise by MC_FORCE_HCA" in said and "set MC_FORCE_HCA=1, MC_RETRY_CNT=1" in said
    settings = {"MC_FORCE_HCA": "1", "MC_RETRY_CNT": "1", "MC_DISABLE_METACACHE": "1"}
    assert "does not start" in start(f"import mooncake.engine; {START}", **settings)


class Stuck:
    """Stands for an engine whose device keeps memory."""

    name = "10.0.0.1:7000"
    library = property(lambda self: self)

    def register_memory(self, address: int, length_bytes: int) -> int:
        return 0

    def unregister_memory(self, address: int) -> int:
        return -202


def test_memory_that_an_engine_keeps_is_told() -> None:
    registered = EngineMemory(cast("Engine", Stuck()), memory := bytearray(4096))
    with pytest.raises(StoreError, match=r"take back 4096 bytes.*\(-202\).*end this process"):
        registered.close()
    registered.close()  # it was told
    assert len(memory) == 4096
    region = MooncakeRegion(memory)
    region.register(cast("Engine", Stuck()))
    with pytest.raises(StoreError, match="could not take back"):
        region.close()
    region.close()
    memory.clear()  # nobody looks at it any more


def test_it_is_not_loaded_before_it_is_used() -> None:
    code = "import sys, tune_sync.fastpath.transports; sys.exit('mooncake' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_a_host_lacks_is_told_step_by_step(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert missing(ANY, kernel.sys, kernel.dev).startswith("device: the kernel knows none")
    kernel.add("none_0", [(IPV4, V2)])
    assert missing(ANY, kernel.sys, kernel.dev).startswith("provider: the system's library knows")
    monkeypatch.setitem(sys.modules, "mooncake", None)
    assert missing(ANY, kernel.sys, kernel.dev) == (
        "extra: the Python package mooncake is not there; pip install 'tune-sync[mooncake]'"
    )
    assert not tell(ANY, kernel.sys, kernel.dev, transport="mooncake")
    lines = capsys.readouterr().out.splitlines()
    assert "MISSING extra: the Python package mooncake is not there" in lines
    assert lines[-1] == "Mooncake cannot be used here"


def test_a_host_without_a_card_takes_another_transport_and_says_so() -> None:
    transport = MooncakeTransport(TOKEN, wish=Wish(device="none_0"))
    with pytest.raises(TransportMissingError, match="'mooncake' cannot be used here: mooncake: "):
        choose("mooncake", [transport], required=True)
    choice = choose("mooncake", [transport, TcpTransport(TOKEN)])
    assert choice.name == "tcp" and choice.fallback_reason.startswith("mooncake: device: ")


def test_programs_that_are_started_do_not_get_its_port() -> None:
    with socket.create_server((HERE, 0)) as its, socket.create_server((HERE, 0)) as another:
        for listener in (its, another):
            listener.set_inheritable(True)
        keep_from_children(its.getsockname()[1])
        assert not its.get_inheritable() and another.get_inheritable()


@pytest.mark.parametrize("host", ["0.0.0.0", "::1", "localhost", ""])
def test_it_listens_only_where_others_reach_it(host: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot listen for '{host}'; give the IPv4 address"):
        Engine(host, ANY)


@pytest.mark.parametrize(
    "found",
    [
        {}, {"engine": "10.0.0.1:7000"}, {"engine": "10.0.0.1:7000", "address": "1"},
        {"engine": "10.0.0.1:7000", "address": 0}, {"engine": "10.0.0.1:0", "address": 1},
        {"engine": "10.0.0.1:7000", "address": 1 << 64}, {"engine": "host:7000", "address": 1},
        {"engine": "10.0.0.1:x", "address": 1}, {"engine": 7, "address": 1},
        {"engine": "10.0.0.1", "address": 1},
    ],
)  # fmt: skip
def test_what_is_no_memory_is_refused(found: dict[str, Any]) -> None:
    with pytest.raises(DamagedError, match="describes no memory"):
        Target.parsed(found)


def test_what_memory_is_told_arrives() -> None:
    told = Target("10.0.0.1:7000", 4096)
    assert Target.parsed(told.fields()) == told
