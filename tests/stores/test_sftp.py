"""Searches whose results are on a host that is reached by SFTP."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray import tune

from tests.hosts.drivers.trainables import whole_digest
from tests.local.trainables import stumbles
from tests.stores.openssh import SftpServer, make_key, openssh
from tests.stores.seaweed import free_ports
from tests.stores.test_secrets import telling
from tune_sync import RunConfig, SyncConfig, cleanup, restore_kwargs
from tune_sync.buckets import sftp_sessions
from tune_sync.buckets.bucket import Bucket
from tune_sync.buckets.opening import check_bucket, open_bucket
from tune_sync.buckets.url import parse_bucket_url
from tune_sync.errors import (
    ConfigError,
    ExperimentExistsError,
    StoreDeniedError,
    StoreFullError,
    StoreUnreachableError,
)

SECRET = "hidden-4711"


@pytest.fixture(scope="module")
def server() -> Iterator[SftpServer]:
    with openssh() as running:
        yield running


@pytest.fixture(scope="module")
def cluster(server: SftpServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Its processes have the key of the user, and know the host, as `ssh` would."""
    home = tmp_path_factory.mktemp("home")
    (home / ".ssh").mkdir()
    # Where Ray keeps its token: a process has one, also for the Ray of the next tests.
    of_ray = Path.home() / ".ray"
    of_ray.mkdir(exist_ok=True)
    (home / ".ray").symlink_to(of_ray)
    shutil.copy(server.key_file, home / ".ssh/id_ed25519")
    host, port = server.host.split(":")
    (home / ".ssh/known_hosts").write_text(f"[{host}]:{port} {server.host_key}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        ray.init("local", num_cpus=2, include_dashboard=False, object_store_memory=200_000_000)
        yield
        ray.shutdown()


@pytest.fixture
def lonely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's keys, and no host that is known."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


def bucket_of(server: SftpServer, name: str, **options: Any) -> Bucket:
    return open_bucket(parse_bucket_url(f"{server.url}/{name}"), {**server.options, **options})


@pytest.mark.parametrize("by_url", [True, False])
def test_a_search_is_stored_and_goes_on_from_its_url(
    server: SftpServer, cluster: None, by_url: bool
) -> None:
    name = f"exp-{by_url}"
    url = f"{server.url}/results/{name}"
    options = None if by_url else {**server.options, "passphrase": SECRET}
    config = RunConfig(
        name=name, verbose=0, checkpoint_config=tune.CheckpointConfig(num_to_keep=2),
        sync_config=SyncConfig(upload_dir=f"{server.url}/results", storage_options=options),
    )  # fmt: skip
    assert len(tune.Tuner(stumbles, run_config=config).fit().errors) == 1
    with pytest.raises(ExperimentExistsError, match=r'restore_kwargs."sftp://'):
        tune.Tuner(stumbles, run_config=config)
    given: dict[str, Any] = {"path": f"fsspec+{url}"} if by_url else restore_kwargs(url, options)
    (result,) = tune.Tuner.restore(trainable=stumbles, resume_errored=True, **given).fit()
    assert result.error is None
    assert (result.metrics["step"], result.metrics["resumed_at"]) == (5, 3)
    with result.checkpoint.as_directory() as local:
        assert whole_digest(local) == result.metrics["digest"]
    keys = [found.key for found in open_bucket(parse_bucket_url(url), options).list("")]
    names = {k.split("/")[1] for k in keys if "/checkpoint_" in k and k[0] != "."}
    assert names == {"checkpoint_000004", "checkpoint_000005"}
    ours = {k.split("/")[1] for k in keys if k.startswith(".tune_sync/")}
    assert ours == {"format.json", "manifests", "tuner.pkl"}
    if by_url:  # it takes what it needs from the environment
        assert cleanup(url).dropped == ()
    assert not telling(server.directory, (SECRET.encode(),))


def refused(error: type[Exception], says: str, url: str, **options: Any) -> None:
    sync = SyncConfig(upload_dir=url, storage_options=options or {"connect_timeout_s": 5})
    with pytest.raises(error, match=says) as caught:
        tune.Tuner(stumbles, run_config=RunConfig(name="exp", sync_config=sync))
    assert url in str(caught.value) and SECRET not in str(caught.value)


def test_who_may_not_come_in_is_told_before_training(
    server: SftpServer, lonely: None, tmp_path: Path
) -> None:
    url, known = server.url, {"host_key": server.host_key}
    make_key(tmp_path / "other")
    wrong = str(tmp_path / "other")
    refused(StoreDeniedError, "authenticate: Authentication", url, **known, key_filename=wrong)
    (tmp_path / "none").write_text("no key")
    refused(StoreDeniedError, "authenticate", url, **known, key_filename=str(tmp_path / "none"))
    refused(StoreDeniedError, "authenticate.*No auth.*check them", url, **known)
    refused(StoreDeniedError, "failed to authenticate: Auth", url, **known, password=SECRET)
    refused(ConfigError, "is no file on this node", url, **known, key_filename="~/absent")
    refused(ConfigError, "username is another", url, **known, username="somebody")


def test_another_host_is_not_written_to(server: SftpServer, lonely: None, tmp_path: Path) -> None:
    key = {"key_filename": str(server.key_file)}
    refused(ConfigError, f"not known.*ssh-keyscan.*{server.host_key[:40]}", server.url, **key)
    other = make_key(tmp_path / "other")
    refused(ConfigError, "another machine answers", server.url, **key, host_key=other)
    refused(ConfigError, "no public key of a host", server.url, **key, host_key="AAAA")


def test_a_place_that_cannot_be_used_is_told_before_training(server: SftpServer) -> None:
    top, options = server.url.partition("/tmp/")[0], server.options
    (server.directory / "file").write_text("x")
    refused(StoreDeniedError, "may not do that", f"{top}/elsewhere/x", **options)
    refused(OSError, "file is a file, where a directory", f"{server.url}/file/x", **options)
    refused(ConfigError, "colour.*known are username", server.url, colour="red", **options)
    refused(ConfigError, "passphrase.*strings", server.url, passphrase=5, **options)
    with pytest.raises(FileNotFoundError):
        given = restore_kwargs(f"{server.url}/never/exp", options)
        tune.Tuner.restore(trainable=stumbles, **given)


def test_a_host_that_does_not_answer_is_told_before_training() -> None:
    refused(StoreUnreachableError, "endpoint", "sftp://nohost.invalid/data")
    refused(StoreUnreachableError, "endpoint", f"sftp://127.0.0.1:{free_ports(1)[0]}/data")
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"sftp://127.0.0.1:{silent.getsockname()[1]}/data"
        refused(StoreUnreachableError, "endpoint", url, connect_timeout_s=1)


def test_a_full_disk_is_told_and_keeps_what_was_there() -> None:
    with openssh(size="8m") as server:
        bucket = bucket_of(server, "full")
        bucket.put("x", b"old")
        bucket.put("filler", b"n" * (6 << 20))
        for size_bytes in (3 << 20, 20 << 20):  # less, and more, than is under way at once
            with pytest.raises(StoreFullError, match=r"sftp://.*cannot put x.*make room"):
                bucket.put_stream("x", [b"n" * size_bytes])
        assert bucket.get("x") == b"old"
        assert [found.key for found in bucket.list("")] == ["filler", "x"]
        bucket.put("y", b"n" * (1 << 20))


def test_an_object_appears_whole_or_not_at_all(server: SftpServer) -> None:
    bucket = bucket_of(server, "whole")
    bucket.put("x", b"old")

    def cut() -> Iterator[bytes]:
        yield b"n" * (20 << 20)
        assert bucket.get("x") == b"old"
        assert server.cut()
        yield b"n" * (20 << 20)

    with pytest.raises(StoreUnreachableError):
        bucket.put_stream("x", cut())
    assert bucket.get("x") == b"old"
    assert [found.key for found in bucket.list("")] == ["x"]


def test_a_connection_that_was_cut_or_falls_silent_is_made_anew(
    server: SftpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = bucket_of(server, "cut", connect_timeout_s=2, request_timeout_s=5)
    bucket.put("x", b"1")
    assert server.cut()
    bucket.put("x", b"2")
    monkeypatch.setattr(sftp_sessions, "FRESH_S", 0.0)
    stopped = psutil.Process(server.pid).children(recursive=True)
    for process in stopped:
        process.send_signal(signal.SIGSTOP)
    try:
        bucket.put_stream("x", [b"3"])  # which is never tried again
    finally:
        for process in stopped:
            process.send_signal(signal.SIGCONT)
    assert stopped and bucket.get("x") == b"3"


def test_streams_that_ask_for_something_else_do_not_wait_for_one_another(
    server: SftpServer,
) -> None:
    bucket = bucket_of(server, "streams", request_timeout_s=5)
    count = 2 * sftp_sessions.SESSIONS_COUNT
    bucket.put("x", b"other")
    all_begun = threading.Barrier(count, timeout=60)

    def chunks() -> Iterator[bytes]:
        yield b"1"
        all_begun.wait()
        yield bucket.get("x")

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(lambda number: bucket.put_stream(f"d/{number}", chunks()), range(count)))
    assert {bucket.get(f"d/{number}") for number in range(count)} == {b"1other"}


def test_more_threads_than_sessions_take_turns(server: SftpServer) -> None:
    server.cut()
    bucket = bucket_of(server, "turns")
    with ThreadPoolExecutor(40) as pool:
        list(pool.map(lambda number: bucket.put(f"d/{number}", os.urandom(9000)), range(200)))
        sizes = list(pool.map(lambda number: len(bucket.get(f"d/{number}")), range(200)))
    assert sizes == [9000] * 200
    port = int(server.host.partition(":")[2])
    ours = [c for c in psutil.Process().net_connections() if c.raddr and c.raddr.port == port]
    in_use = [c for c in ours if c.status == psutil.CONN_ESTABLISHED]
    assert len(in_use) == sftp_sessions.SESSIONS_COUNT
    bucket.delete([f"d/{number}" for number in range(200)])
    assert not list((server.directory / "turns").iterdir())


def test_an_object_is_on_the_disk_before_it_has_its_name(tmp_path: Path) -> None:
    """Where the server can do that; this one says that it cannot, and keeps the object."""
    from tests.stores.plain_sftp import plain_sftp

    with plain_sftp(tmp_path, SECRET, replaces=True) as server:
        bucket = open_bucket(parse_bucket_url(f"{server.url}/d"), server.options)
        for data in (b"n" * 100_000, b"again"):
            bucket.put("x", data)
            assert bucket.get("x") == data
            assert server.asked[-2:] == ["fsync", "rename"] and "write" in server.asked
            server.asked.clear()
        wrong = {**server.options, "password": "other"}
        with pytest.raises(StoreDeniedError, match="failed to authenticate"):
            open_bucket(parse_bucket_url(server.url), wrong).list("")


def test_a_server_whose_rename_does_not_replace_is_refused(tmp_path: Path) -> None:
    from tests.stores.plain_sftp import plain_sftp

    with plain_sftp(tmp_path, SECRET, replaces=False) as server:
        with pytest.raises(ConfigError, match=r"sftp://somebody.*no rename that replaces"):
            check_bucket(parse_bucket_url(f"{server.url}/d"), server.options, write=True)
        assert list(tmp_path.rglob("*")) == [tmp_path / "d"]
