"""`tune-sync bench` with a real target and a real initiator."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fastpath.certificates import make_certificates
from tests.meta.test_imports import BLOCK_RAY
from tune_sync.cli import main

TOKEN = "the token of this bench"
MAIN = f"{BLOCK_RAY}from tune_sync.cli import main; sys.exit(main())"
LOAD = ["--duration", "0.3", "--batch-size", "2", "--block-size", "64KiB", "--threads", "2"]


def command(*words: str) -> list[str]:
    return [sys.executable, "-c", MAIN, "bench", *words]


def environment(token: str = TOKEN) -> dict[str, str]:
    return {**os.environ, "TUNE_SYNC_TOKEN": token}


def initiate(*words: str, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command("initiator", *words), env=environment(token), capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip


class Target:
    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            command("target", "--memory", "8MiB", *words), env=environment(),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.first = self.line()
        if "is used (" in self.first:  # instead of RDMA
            self.first = self.line()
        self.address = self.first.split()[-1]

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@pytest.fixture
def target() -> Iterator[Target]:
    made = Target()
    yield made
    made.process.kill()
    made.process.wait()
    made.process.stdout.close()  # type: ignore[union-attr]


def test_it_measures_both_operations_and_says_by_what(target: Target) -> None:
    assert target.first.startswith("tcp target at 127.0.0.1:")
    for operation in ("write", "read"):
        done = initiate(target.address, "--operation", operation, *LOAD, "--json")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert (found["transport"], found["operation"]) == ("tcp", operation)
        assert found["moved_bytes"] % (2 * 65536) == 0 and found["moved_bytes"] > 0
        assert 0.3 <= found["seconds"] < 60 and found["cpu_s"] > 0
        assert 0 < found["p50_s"] <= found["p99_s"] <= found["seconds"]
        told = target.line()
        assert "CPU here" in told and " s per GB" in told
    assert target.stop() == 0


def test_it_prints_for_people(target: Target) -> None:
    done = initiate(target.address, *LOAD)
    assert done.returncode == 0, done.stderr
    for part in ("write over tcp: ", " GB/s", "p50 ", "p99 ", " s per GB"):
        assert part in done.stdout


def test_another_token_is_one_clear_error(target: Target) -> None:
    done = initiate(target.address, "--transport", "tcp", *LOAD, token="the token of another")
    assert done.returncode == 1 and "PeerRefusedError" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert "was refused" in target.line()


def test_a_target_with_too_little_memory_says_so(target: Target) -> None:
    done = initiate(target.address, "--batch-size", "64", "--block-size", "1MiB")
    assert done.returncode == 1 and "StoreFullError" in done.stderr


@pytest.mark.parametrize("size", ["1", "4KiB", "40KiB"])
def test_small_loads_find_room(target: Target, size: str) -> None:
    one = ["--duration", "0.1", "--batch-size", "1", "--threads", "1", "--block-size", size]
    done = initiate(target.address, "--transport", "tcp", *one)
    assert done.returncode == 0, done.stderr


def test_without_a_token_it_tells_how_to_make_one() -> None:
    env = {k: v for k, v in environment().items() if k != "TUNE_SYNC_TOKEN"}
    done = subprocess.run(
        command("target"), env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1 and "TUNE_SYNC_TOKEN is not set" in done.stderr


def test_a_transport_that_is_not_there_is_refused(target: Target) -> None:
    for name in ("pigeon", "object_store"):
        done = initiate(target.address, "--transport", name, *LOAD)
        assert done.returncode == 2
        listed = done.stderr.partition("choose from ")[2].strip(" )\n").replace("'", "")
        assert listed == "auto, rdma, mooncake, tcp"


@pytest.mark.parametrize("role", [[], ["target"], ["initiator"]])
def test_its_help_tells_the_transports_and_the_token(
    role: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["bench", *role, "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert "Transports: auto, rdma, mooncake, tcp." in said and "TUNE_SYNC_TOKEN" in said


def test_what_is_no_address_is_told_before_all_else() -> None:
    wrong = ("127.0.0.1", "127.0.0.1:99999", "127.0.0.1:\N{SUPERSCRIPT TWO}")
    for words in [
        *(["initiator", at] for at in wrong),
        *(["target", "--listen", at] for at in wrong),
    ]:
        done = subprocess.run(
            command(*words), env=environment(), capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip
        assert done.returncode == 1 and "is no address; give HOST:PORT" in done.stderr
        assert len(done.stderr.splitlines()) == 1  # nothing of RDMA


def test_a_device_is_chosen_by_options_or_else_by_the_environment(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    rdma = [target.address, "--transport", "rdma", *LOAD]
    done = initiate(*rdma, "--device", "mlx5_7", "--port", "1", "--gid-index", "-1")
    assert done.returncode == 1 and "device='mlx5_7', port=1, gid_index=-1" in done.stderr
    monkeypatch.setenv("TUNE_SYNC_RDMA_GID_INDEX", "three")
    done = initiate(*rdma)
    assert done.returncode == 1 and "TUNE_SYNC_RDMA_GID_INDEX='three': a whole" in done.stderr


def test_within_tls(tmp_path: Path) -> None:
    tls = make_certificates(tmp_path)
    words = [
        "--tls-certificate", str(tls.certificate), "--tls-key", str(tls.key),
        "--tls-authority", str(tls.authority),
    ]  # fmt: skip
    made = Target("--duration", "120", *words)
    try:
        done = initiate(made.address, *LOAD, *words)
        assert done.returncode == 0 and "GB/s" in done.stdout, done.stderr
        assert "give all" in initiate(made.address, *LOAD, *words[:2]).stderr
    finally:
        assert made.stop() == 0
        made.process.stdout.close()  # type: ignore[union-attr]


def test_an_address_that_is_not_of_this_host_and_a_port_that_is_taken_are_named(
    target: Target,
) -> None:
    for place in ("192.0.2.1:0", "no.such.host.invalid:0", target.address):
        done = subprocess.run(
            command("target", "--transport", "tcp", "--listen", place), env=environment(),
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode and f"--listen {place}: " in done.stderr, done.stderr
        assert "Traceback" not in done.stderr and "give an address of this host" in done.stderr
