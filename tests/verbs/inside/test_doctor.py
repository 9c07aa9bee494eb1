"""Each check fails for its own reason, and names it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.verbs.inside.elsewhere import MANY_BYTES, look, register
from tests.verbs.inside.others import running
from tune_sync.cli import main
from tune_sync.fastpath.verbs.checks import Wish, checks, missing

PROVIDER = Path("/etc/libibverbs.d/rxe.driver")
CONTROL = Path("/dev/infiniband/uverbs0")
STEPS = [
    "device", "permission", "link", "address", "extra", "provider", "lockable memory",
    "write to itself",
]  # fmt: skip


def run(*argv: str) -> None:
    subprocess.run(argv, check=True)


def found(step: str, lacks: str = "") -> str:
    """What the doctor says in a process that `lacks` something; `step` fails for transports too."""
    with running(look, lacks) as other:
        told = other.told
    assert not told["is_good"] and f"MISSING {step}: " in told["said"]
    assert told["chosen"] == "tcp" and told["reason"].startswith(f"rdma: {step}: ")
    assert f"'rdma' cannot be used here: rdma: {step}: " in told["required"]
    return str(told["said"])


def test_all_steps_are_good_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert [check.name for check in checks()] == STEPS
    assert missing() == ""
    assert main(["doctor"]) == 0
    assert "RDMA can be used here" in capsys.readouterr().out


def test_another_device_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--device", "mlx5_7"]) == 1
    assert "mlx5_7" in (out := capsys.readouterr().out) and "rxe0" in out


def test_an_address_that_is_not_there_is_named() -> None:
    assert missing(Wish(gid_index=200)).startswith("address: no index 200")


def test_a_link_that_is_down_is_named() -> None:
    run("ip", "link", "set", "veth0", "down")
    try:
        assert "rxe0 port 1 is 1: DOWN" in found("link")
    finally:
        run("ip", "link", "set", "veth0", "up")


def test_a_user_without_permission_is_told() -> None:
    CONTROL.chmod(0o600)
    try:
        out = found("permission", "user")
    finally:
        CONTROL.chmod(0o666)
    assert "/dev/infiniband/uverbs0 may not be read" in out


def test_a_missing_extra_is_named() -> None:
    assert "tune-sync[rdma]" in found("extra", "extra")


def test_a_missing_provider_is_named() -> None:
    text = PROVIDER.read_text()
    PROVIDER.unlink()
    try:
        assert "ibverbs-providers" in found("provider")
    finally:
        PROVIDER.write_text(text)


def test_too_little_lockable_memory_is_named() -> None:
    assert f"{MANY_BYTES // 4} bytes" in found("lockable memory", "lockable memory")
    with running(register) as other:
        assert "ulimit -l" in other.told and f"{MANY_BYTES // 4} bytes" in other.told
