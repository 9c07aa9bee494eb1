"""Drivers, agents and whole machines that die while checkpoints are on their way to a bucket."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ray

from tests.stores.behind_driver import HOLDS_AT, STEPS
from tests.stores.proxy import Faults, proxy
from tests.stores.seaweed import seaweed
from tune_sync.agents.names import names_of
from tune_sync.buckets.opening import open_bucket
from tune_sync.buckets.url import parse_bucket_url

# Each starts several drivers, and waits for what they have to find out by themselves.
pytestmark = pytest.mark.slow

URL = "s3://bucket/results"
TIMEOUT_S = 150.0
WAITS_S, SOON_S = 5.0, 6.0
# An agent that can send begins within that.
SETTLE_S = 5.0
REPOSITORY = Path(__file__).parents[2]


@dataclass
class Place:
    """A bucket that can be made to hang, and whose credentials are in no environment."""

    faults: Faults
    options: dict[str, Any]
    direct: dict[str, Any]

    def keys(self, name: str) -> list[str]:
        """All objects of an experiment, asked for without the proxy."""
        url = parse_bucket_url(f"{URL}/{name}")
        return [found.key for found in open_bucket(url, self.direct).list("")]

    def published(self, name: str) -> set[str]:
        return {k.rsplit("/")[-1] for k in self.keys(name) if ".tune_sync/manifests/" in k}

    def sealed(self, name: str) -> set[str]:
        """Checkpoints whose bytes are all there, published or not."""
        seals = {k.split("/")[-3] + ".json" for k in self.keys(name) if k.endswith("/seal.json")}
        return seals | self.published(name)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    faults = Faults()
    with (
        seaweed(tmp_path_factory.mktemp("weed")) as server,
        proxy(server.endpoint_url, faults) as url,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name in [name for name in os.environ if name.startswith(("AWS_", "TUNE_SYNC_"))]:
            patch.delenv(name)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        quick = {"request_timeout_s": 2.0}
        made = Place(faults, {**server.options, "endpoint_url": url, **quick}, server.options)
        open_bucket(parse_bucket_url("s3://bucket"), server.options).put("here", b"")
        yield made


@pytest.fixture(autouse=True)
def answering(place: Place) -> Iterator[None]:
    yield
    place.faults.delay_s = 0.0
    place.faults.passes.set()
    wait_until(lambda: not agents_of_tests(), "all agents to end")


@pytest.fixture(scope="module")
def address(place: Place) -> Iterator[str]:
    """A cluster that outlives its drivers."""
    ray.init("local", num_cpus=4, include_dashboard=False, object_store_memory=200_000_000)
    yield str(ray.get_runtime_context().gcs_address)
    ray.shutdown()


class Search:
    """Drivers of one experiment."""

    def __init__(self, place: Place, name: str, tmp_path: Path, address: str = "") -> None:
        self.notes = tmp_path / "notes"
        self.notes.mkdir()
        self.staging = tmp_path / "staging"
        self._place, self._name = place, name
        self._spec = {
            "name": name, "url": URL, "options": place.options, "staging": str(self.staging),
            "notes": str(self.notes), "address": address,
        }  # fmt: skip

    def drive(self, **more: Any) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "tests.stores.behind_driver"]
        env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TUNE_GLOBAL_CHECKPOINT_S": "1"}
        return subprocess.Popen(
            [*argv, json.dumps({**self._spec, **more})], env=env, cwd=REPOSITORY, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def start_and_stage(self) -> subprocess.Popen[str]:
        """A driver whose first checkpoint is published, and three more are staged."""
        driver = self.drive()
        wait_until(lambda: bool(self._place.published(self._name)), "the first one", driver)
        self._place.faults.passes.clear()
        (self.notes / "go").touch()
        wait_until((self.notes / str(HOLDS_AT - 1)).exists, "reports that return", driver)
        return driver


def wait_until(
    holds: Callable[[], bool], what: str, driver: subprocess.Popen[str] | None = None
) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while not holds():
        if driver is not None and driver.poll() is not None:
            raise AssertionError(f"the driver ended: {driver.communicate()[0]}")
        assert time.monotonic() < end_s, f"waited for {what}"
        time.sleep(0.1)


def kill(driver: subprocess.Popen[str]) -> None:
    driver.kill()
    driver.communicate()


def result_of(driver: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = driver.communicate(timeout=TIMEOUT_S)
    lines = [line for line in out.splitlines() if line.startswith("RESULT ")]
    assert lines, out
    found: dict[str, Any] = json.loads(lines[0].removeprefix("RESULT "))
    return {**found, "out": out}


def actors(kind: str) -> list[int]:
    """Processes of actors in the cluster of this process."""
    return sorted(p for p in descendants(os.getpid()) if title(p).startswith(f"ray::{kind}"))


def agents_of_tests() -> list[int]:
    """Node agents."""
    return actors("NodeAgent")


def keeper_knows(name: str) -> bool:
    """Whether the keeper of an experiment's options has heard them."""
    begins = f"options-of-{names_of(f'{URL}/{name}')}"
    for found in ray.util.list_named_actors(all_namespaces=True):
        if found["name"].startswith(begins):
            keeper = ray.get_actor(found["name"], namespace=found["namespace"])
            return bool(ray.get(keeper.options.remote(), timeout=TIMEOUT_S))
    return False


def staged(staging: Path) -> set[str]:
    """Checkpoints that a machine has sealed in a staging directory."""
    return {seal.parents[1].name for seal in staging.rglob("seal.json")}


def title(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def descendants(pid: int) -> set[int]:
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(text.rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def kept_secrets(staging: Path) -> list[str]:
    """Files of a staging directory that hold the secret."""
    return [str(f) for f in staging.rglob("*") if f.is_file() and b"testsecret" in f.read_bytes()]


def test_driver_and_agent_die_all_arrives_and_one_of_two_restores_goes_on(
    place: Place, address: str, tmp_path: Path
) -> None:
    search = Search(place, "both", tmp_path, address)
    driver = search.start_and_stage()
    wait_until(lambda: keeper_knows("both"), "someone to know the options but these two", driver)
    kill(driver)
    (agent,) = agents_of_tests()
    os.kill(agent, signal.SIGKILL)
    assert kept_secrets(search.staging) == []
    place.faults.passes.set()
    wait_until(lambda: len(place.sealed("both")) == HOLDS_AT, "a new agent to send all")

    drivers = [search.drive(restore=True) for _ in range(2)]
    wait_until(lambda: any(d.poll() is not None for d in drivers), "one to be refused")
    (search.notes / "again").touch()
    found = sorted((result_of(driver) for driver in drivers), key=lambda f: "held" in f)
    assert "in use by a live run" in found[1]["held"]
    assert found[0]["error"] == ""
    assert found[0]["resumed_at"] == HOLDS_AT
    assert sorted(place.published("both")) == [f"checkpoint_{n:06d}.json" for n in range(STEPS)]
    wait_until(lambda: not agents_of_tests(), "all agents to end")
    assert not list(search.staging.rglob("seal.json"))


def test_an_agent_to_whom_nobody_tells_the_options_gets_them_from_the_restore(
    place: Place, address: str, tmp_path: Path
) -> None:
    search = Search(place, "untold", tmp_path, address)
    kill(search.start_and_stage())
    (agent,) = agents_of_tests()
    for pid in (agent, *actors("OptionsKeeper")):
        os.kill(pid, signal.SIGKILL)
    place.faults.passes.set()
    wait_until(lambda: agents_of_tests() not in ([], [agent]), "a new agent")
    time.sleep(SETTLE_S)
    assert len(place.sealed("untold")) == 1, "with whose credentials?"
    (search.notes / "again").touch()
    found = result_of(search.drive(restore=True))
    assert (found["error"], found["resumed_at"]) == ("", HOLDS_AT), found["out"]


def test_a_restore_beside_an_agent_that_still_sends_waits_for_it(
    place: Place, address: str, tmp_path: Path
) -> None:
    search = Search(place, "beside", tmp_path, address)
    driver = search.start_and_stage()
    kill(driver)
    place.faults.delay_s = 0.5  # it sends for seconds
    place.faults.passes.set()
    (search.notes / "again").touch()
    found = result_of(search.drive(restore=True))
    place.faults.delay_s = 0.0
    assert (found["error"], found["resumed_at"]) == ("", HOLDS_AT)
    assert sorted(place.published("beside")) == [f"checkpoint_{n:06d}.json" for n in range(STEPS)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_driver_that_is_told_to_stop_loses_nothing(
    place: Place, address: str, tmp_path: Path, number: signal.Signals
) -> None:
    search = Search(place, number.name, tmp_path, address)
    driver = search.start_and_stage()
    driver.send_signal(number)
    place.faults.passes.set()
    out, _ = driver.communicate(timeout=TIMEOUT_S)
    wait_until(lambda: len(place.sealed(number.name)) == HOLDS_AT, f"all to arrive: {out}")
    (search.notes / "again").touch()
    found = result_of(search.drive(restore=True))
    assert (found["error"], found["resumed_at"], found["step"]) == ("", HOLDS_AT, STEPS - 1)


def test_a_driver_that_is_told_twice_does_not_wait_and_loses_nothing_either(
    place: Place, address: str, tmp_path: Path
) -> None:
    search = Search(place, "twice", tmp_path, address)
    driver = search.start_and_stage()
    driver.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        driver.wait(WAITS_S)  # for a bucket that hangs
    began_s = time.monotonic()
    driver.send_signal(signal.SIGINT)
    out, _ = driver.communicate(timeout=TIMEOUT_S)
    assert time.monotonic() - began_s < SOON_S, out
    assert "RESULT" not in out
    place.faults.passes.set()
    (search.notes / "again").touch()
    found = result_of(search.drive(restore=True))
    assert (found["error"], found["resumed_at"], found["step"]) == ("", HOLDS_AT, STEPS - 1)


def test_after_its_deadline_fit_raises_and_what_it_named_is_sent_and_restores(
    place: Place, address: str, tmp_path: Path
) -> None:
    search = Search(place, "late", tmp_path, address)
    driver = search.drive(sync_timeout=5, last=HOLDS_AT)
    wait_until(lambda: bool(place.published("late")), "the first one", driver)
    place.faults.passes.clear()
    (search.notes / "go").touch()
    found = result_of(driver)
    assert "checkpoint_000003" in found["not_stored"]
    assert len(place.sealed("late")) == 1
    place.faults.passes.set()
    wait_until(lambda: len(place.sealed("late")) == HOLDS_AT, "the agent to send the rest")
    (search.notes / "again").touch()
    again = result_of(search.drive(restore=True))
    assert (again["error"], again["resumed_at"], again["step"]) == ("", HOLDS_AT, STEPS - 1)


def test_what_a_machine_had_staged_when_it_went_down_is_sent_by_the_next_restore(
    place: Place, tmp_path: Path
) -> None:
    search = Search(place, "reboot", tmp_path)
    driver = search.start_and_stage()
    for pid in (driver.pid, *descendants(driver.pid)):
        os.kill(pid, signal.SIGKILL)
    driver.communicate()
    assert len(place.sealed("reboot")) == 1
    # The first one's copy may have gone: it is published, and newer ones are there.
    assert staged(search.staging) >= {f"checkpoint_{n:06d}" for n in range(1, HOLDS_AT)}
    place.faults.passes.set()
    (search.notes / "again").touch()
    found = result_of(search.drive(restore=True))
    assert (found["error"], found["resumed_at"]) == ("", HOLDS_AT), found["out"]
    assert "has sent what an earlier run had left there" in found["out"]
    assert sorted(place.published("reboot")) == [f"checkpoint_{n:06d}.json" for n in range(STEPS)]
    assert not list(search.staging.rglob("seal.json"))
