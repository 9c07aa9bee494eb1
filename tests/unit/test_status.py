"""What is told of a run from what is at its destination alone, and how it reads."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

import tune_sync
from tests.unit.staged import placed
from tune_sync import cli
from tune_sync.agents.known_runs import Answers, KnownRun
from tune_sync.buckets.url import parse_bucket_url
from tune_sync.errors import ConfigError
from tune_sync.homes.bucket.home import BucketHome
from tune_sync.homes.bucket.site import BucketSite
from tune_sync.homes.home import Home, LocalHome
from tune_sync.homes.lease import Holder
from tune_sync.homes.look import look_at
from tune_sync.homes.recorded import Recovery
from tune_sync.homes.sites import LocalSite, Site, format_json
from tune_sync.homes.store import Info
from tune_sync.layout import FORMAT_KEY, LEASE_KEY
from tune_sync.monitor import look
from tune_sync.monitor.joining import ENDED_TIMEOUT_S, JOIN_TIMEOUT_S, muted
from tune_sync.monitor.seen import NodeStatus, Status
from tune_sync.run import Run
from tune_sync.spec import Options, Spec
from tune_sync.testing.memory_bucket import MemoryBucket
from tune_sync.tidying import tidy

TIMEOUT_S = 60.0
FIRST, SECOND = "t/checkpoint_000000", "u/checkpoint_000000"


def run_in(root: Path) -> Run:
    """A run that has stored two checkpoints, and goes on."""
    run = Run.open(root, "error", TIMEOUT_S, 1)
    for key in (FIRST, SECOND):
        run.publisher.record_later(placed(run.home.committer, {"a": b"1"}, key))
    run.flush(TIMEOUT_S)
    return run


def test_a_directory_tells_what_is_stored_and_who_drives(tmp_path: Path) -> None:
    run = run_in(tmp_path / "exp")
    found = tune_sync.status(tmp_path / "exp")
    assert (found.where, found.stored_count, found.is_running) == (str(tmp_path / "exp"), 2, True)
    assert found.newest_stored_s is not None
    assert 0 <= found.newest_stored_s < TIMEOUT_S
    assert "process" in found.driver
    assert (found.nodes, found.staged_count, found.failed_count) == ((), 0, 0)
    run.close()
    ended = tune_sync.status(str(tmp_path / "exp"))
    assert (ended.stored_count, ended.is_running, ended.driver) == (2, False, "")


def test_a_killed_driver_is_told_from_one_that_has_ended(tmp_path: Path) -> None:
    run = run_in(tmp_path / "exp")
    lease = tmp_path / "exp" / LEASE_KEY
    holder = replace(Holder.here(run.owner, time.time()), process_start="another")
    run.close()
    lease.write_text(holder.to_json())
    found = tune_sync.status(tmp_path / "exp")
    assert not found.is_running
    assert "its driver is gone, process" in str(found)


@pytest.mark.parametrize("silent_s", [20.0, 60.0, 100.0])
@pytest.mark.parametrize("in_bucket", [False, True])
def test_a_driver_elsewhere_is_believed_in_as_long_as_its_lease_is(
    tmp_path: Path, in_bucket: bool, silent_s: float
) -> None:
    now_s = time.time()
    holder = Holder("o", "far", 12, "another machine", "345", now_s - silent_s)
    files = {FORMAT_KEY: format_json(), LEASE_KEY: holder.to_json().encode()}
    home: Home
    if in_bucket:
        bucket = MemoryBucket()
        bucket.objects.update(files)
        home = BucketHome(bucket)
    else:
        (tmp_path / ".tune_sync").mkdir()
        for key, data in files.items():
            (tmp_path / key).write_bytes(data)
        home = LocalHome(tmp_path)
    found = look_at(home, "here", lambda: now_s)
    assert found.holder == holder
    assert found.is_live == (silent_s < (90.0 if in_bucket else 30.0))


def test_a_lease_that_is_replaced_during_a_look_is_looked_at_again(tmp_path: Path) -> None:
    now_s = time.time()
    holder = Holder("o", "far", 12, "another machine", "345", now_s)

    class Beating(LocalHome):
        """Its lease gets longer after the first look at its size."""

        def info(self, key: str) -> Info | None:
            found = super().info(key)
            if key == LEASE_KEY:
                (tmp_path / LEASE_KEY).write_text(holder.to_json())
            return found

    (tmp_path / ".tune_sync").mkdir()
    (tmp_path / FORMAT_KEY).write_bytes(format_json())
    (tmp_path / LEASE_KEY).write_text(replace(holder, pid=1).to_json())
    assert look_at(Beating(tmp_path), "here", lambda: now_s).holder == holder


def test_a_bucket_is_looked_at_by_few_requests() -> None:
    class Counting(MemoryBucket):
        def __init__(self) -> None:
            super().__init__()
            self.asked: list[str] = []

        def list(self, prefix: str) -> list:  # type: ignore[type-arg]
            self.asked.append(prefix)
            return super().list(prefix)

    bucket = Counting()
    bucket.objects[FORMAT_KEY] = format_json()
    for number in range(50):
        bucket.objects[f".tune_sync/manifests/t{number}/checkpoint_000000.json"] = b"{}"
    found = look_at(BucketHome(bucket), "here")
    assert (found.count, found.holder, found.is_live) == (50, None, False)
    assert bucket.asked.count(".tune_sync/manifests") == 1
    assert len(bucket.asked) <= 3


def test_what_is_not_there_is_named_with_the_ways_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"'exp'.*ray_results/exp.*ray\.init"):
        tune_sync.status("exp")
    with pytest.raises(FileNotFoundError, match="gone"):
        tune_sync.status(tmp_path / "gone")
    (tmp_path / "plain").mkdir()
    with pytest.raises(FileNotFoundError, match="plain holds no experiment"):
        tune_sync.status("plain")


@pytest.mark.parametrize("name", ["exp", "group/exp"])
def test_a_name_is_looked_for_below_rays_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    run_in(tmp_path / "ray_results" / name).close()
    assert tune_sync.status(name).stored_count == 2
    with pytest.raises(FileNotFoundError) as raised:
        tune_sync.status(f"./{name}")
    assert "ray_results" not in str(raised.value)


def test_a_run_of_a_name_with_a_group_is_known_by_it_and_first_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [
        KnownRun(Spec("key", str(root), "group/exp", "", None, Options()).to_plain())
        for root in (tmp_path, tmp_path / "other")
    ]
    assert look._matching((runs[1],), "group/exp") == [runs[1]]
    assert look._matching(tuple(runs), "group/exp") == [runs[0]]


def test_another_versions_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".tune_sync").mkdir()
    (tmp_path / FORMAT_KEY).write_text(json.dumps({"format_version": 99}))
    with pytest.raises(ConfigError, match="99"):
        tune_sync.status(tmp_path)


@pytest.mark.parametrize("in_bucket", [False, True])
def test_a_mark_that_a_power_cut_left_empty_is_ours(tmp_path: Path, in_bucket: bool) -> None:
    site: Site = LocalSite(tmp_path / "exp")
    if in_bucket:
        site = BucketSite(parse_bucket_url(f"memory://empty-{tmp_path.name}/exp"))
    site.prepare()
    site.put(FORMAT_KEY, b"")
    assert look_at(site.home("", 1), site.where).count == 0
    assert site.is_ours()
    assert tidy(site) == Recovery((), ())
    site.prepare()


def test_it_reads_well() -> None:
    busy = NodeStatus("abcdef0123", "10.0.0.2", 3, 12_000_000, 9, 36_000_000, 1, 42.4, "no route")
    numbers = "3 staged (12.0 MB, the oldest for 42 s), 9 sent (36.0 MB), 1 failed"
    idle = NodeStatus("0123456789", "10.0.0.3")
    found = Status(
        "s3://bucket/exp",
        True,
        "process 12 on host a",
        17,
        4.2,
        (busy, idle),
        {FIRST: "its node died"},
    )
    assert str(found).splitlines() == [
        "s3://bucket/exp: running, process 12 on host a",
        "  stored: 17 checkpoints, the newest 4 s ago",
        "  staged: 3 (12.0 MB, the oldest for 42 s)",
        "  failed: 1",
        f"    {FIRST}: its node died",
        f"  node abcdef01 (10.0.0.2): {numbers}; no route",
        "  node 01234567 (10.0.0.3): 0 staged (0.0 MB), 0 sent (0.0 MB), 0 failed",
    ]
    alone = replace(idle, unreplicated=f"{FIRST}: the other node is full")
    assert str(alone) == f"{idle}; no replica of {FIRST}: the other node is full"
    away = Status("s3://bucket/exp", error="it does not answer")
    assert str(away).splitlines() == [
        "s3://bucket/exp: unknown whether it runs",
        "  stored: unknown, the destination cannot be read: it does not answer",
    ]


@pytest.fixture
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command does not look for a Ray of this machine."""
    monkeypatch.setattr("tune_sync.monitor.command.join_cluster", lambda timeout_s: "")


def test_the_command_prints_it_or_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], no_cluster: None
) -> None:
    run_in(tmp_path / "exp").close()
    assert cli.main(["status", str(tmp_path / "exp")]) == 0
    assert "stored: 2 checkpoints" in capsys.readouterr().out
    assert cli.main(["status", str(tmp_path / "gone")]) == 1
    assert "gone" in capsys.readouterr().err


def test_what_is_stored_at_a_path_is_told_once_and_before_a_cluster_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def join(timeout_s: float) -> str:
        told.append(capsys.readouterr().out)
        return ""

    monkeypatch.setattr("tune_sync.monitor.command.join_cluster", join)
    run_in(tmp_path / "exp").close()
    assert cli.main(["status", str(tmp_path / "exp")]) == 0
    assert "stored: 2 checkpoints" in told[0]
    assert not capsys.readouterr().out


def test_what_rays_core_says_while_it_cannot_connect_is_not_shown(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with muted():
        os.write(2, b"Failed to connect to GCS\n")
    os.write(2, b"shown\n")
    assert capfd.readouterr().err == "shown\n"


def test_what_can_be_nowhere_is_refused_before_a_cluster_is_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def join(timeout_s: float) -> str:
        raise AssertionError("a cluster is asked")

    monkeypatch.setattr("tune_sync.monitor.command.join_cluster", join)
    assert cli.main(["status", "gopher://somewhere/exp"]) == 1
    assert "gopher" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "way_out"),
    [("s3://bucket/exp", "endpoint, region and credentials"), ("/mnt/exp", "file server")],
)
def test_what_does_not_answer_is_named_with_what_to_look_at(
    place: str, way_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = threading.Event()

    def hang(*arguments: object, **named: object) -> None:
        ends.wait(TIMEOUT_S)
        raise OSError("late")

    monkeypatch.setattr(look, "LOOK_TIMEOUT_S", 0.1)
    monkeypatch.setattr(look, "_find", hang)
    found = look.stored_status(place)
    ends.set()
    assert isinstance(found, TimeoutError)
    assert str(found).startswith(f"{place} does not answer within 0 s; ")
    assert way_out in str(found)


def test_the_cluster_is_not_waited_for_as_long_once_all_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits_s: list[float] = []

    def join(timeout_s: float) -> str:
        waits_s.append(timeout_s)
        return ""

    monkeypatch.setattr("tune_sync.monitor.command.join_cluster", join)
    root = tmp_path / "exp"
    run = run_in(root)
    assert cli.main(["status", str(root)]) == 0
    run.lease.leave()  # nodes may still have something
    assert cli.main(["status", str(root)]) == 0
    run.close()
    (root / LEASE_KEY).unlink(missing_ok=True)
    assert cli.main(["status", str(root)]) == 0
    assert cli.main(["status", "--wait", "40", str(root)]) == 0
    assert waits_s == [JOIN_TIMEOUT_S, JOIN_TIMEOUT_S, ENDED_TIMEOUT_S, 40.0]


def test_options_that_are_given_are_used_for_a_run_that_the_cluster_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = Spec("key", "bucket/path", "exp", "", None, Options(), scheme="s3")
    answers = Answers((KnownRun(spec.to_plain()),), ())
    monkeypatch.setattr(look, "_ask_cluster", lambda: answers)
    opened: list[dict[str, object]] = []

    def note(url: object, options: dict[str, object], **fields: object) -> MemoryBucket:
        opened.append(options)
        return MemoryBucket()

    monkeypatch.setattr(look, "open_bucket", note)
    given = {"endpoint_url": "http://127.0.0.1:9"}
    assert tune_sync.status("exp", given).where == "s3://bucket/path/exp"
    assert opened == [given]
