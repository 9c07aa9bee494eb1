"""A restore that cannot look says so. Only what is surely not there is told as not there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest
import ray
from ray import tune

from tests.local.trainables import stumbles
from tests.stores.seaweed import S3Server, make_bucket, s3, seaweed
from tune_sync import RunConfig, SyncConfig
from tune_sync.errors import StoreDeniedError

URL = "s3://bucket/runs/exp"
SOON_S = 150.0


class ShakyFileSystem(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """A library that is broken."""

    protocol = "shaky"

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        raise TypeError("unexpected keyword argument")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """With an experiment that failed after three steps, and its settings in the environment."""
    users = {"reader": ["Read", "List"]}
    with (
        seaweed(tmp_path_factory.mktemp("weed"), users=users) as running,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in running.env.items():
            patch.setenv(name, value)
        make_bucket(running)
        ray.init("local", num_cpus=1, include_dashboard=False, object_store_memory=100_000_000)
        sync = SyncConfig(upload_dir=URL.rpartition("/")[0])
        config = RunConfig(name="exp", verbose=0, sync_config=sync)
        assert tune.Tuner(stumbles, run_config=config).fit().errors
        yield running
        ray.shutdown()


@pytest.fixture
def unchanged(server: S3Server) -> Iterator[None]:
    before = stamps(server)
    assert before
    yield
    assert stamps(server) == before


def stamps(server: S3Server) -> dict[str, str]:
    found = s3(server).list_objects_v2(Bucket="bucket")
    return {entry["Key"]: entry["ETag"] for entry in found["Contents"]}


def refused(error: type[Exception], says: str, url: str = URL) -> Exception:
    start_s = time.monotonic()
    with pytest.raises(error, match=says) as refusal:
        tune.Tuner.restore(url, stumbles, resume_errored=True).fit()
    assert time.monotonic() - start_s < SOON_S
    return refusal.value


def test_what_is_not_there(unchanged: None) -> None:
    refused(FileNotFoundError, "never", "s3://bucket/runs/never")
    assert not tune.Tuner.can_restore("s3://bucket/runs/never")


def test_a_missing_bucket(unchanged: None) -> None:
    refused((FileNotFoundError, OSError), "nowhere", "s3://nowhere/runs/exp")  # type: ignore[arg-type]


def test_wrong_credentials(unchanged: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    error = refused(OSError, "ACCESS_DENIED|SIGNATURE")
    assert not isinstance(error, FileNotFoundError)
    with pytest.raises(OSError, match=r"ACCESS_DENIED|SIGNATURE"):
        tune.Tuner.can_restore(URL)


def test_no_such_host(unchanged: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://nohost.invalid")
    error = refused(OSError, "(?i)resolve host")
    assert not isinstance(error, FileNotFoundError)


def test_a_library_that_is_broken_starts_nothing(unchanged: None, tmp_path: Any) -> None:
    fsspec.register_implementation("shaky", ShakyFileSystem, clobber=True)
    # pyarrow, by which Ray reads, asks fsspec's `isfile`, which says no to any error. The way out
    # is `restore_kwargs`: see test_refused_urls.
    refused(FileNotFoundError, "tuner.pkl", f"fsspec+shaky://{tmp_path}/exp")
    assert not list(tmp_path.iterdir())


def test_one_who_may_only_read_sees_results_and_does_not_go_on(
    unchanged: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "reader")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "reader-secret")
    (result,) = tune.Tuner.restore(URL, stumbles).get_results()
    assert result.metrics["step"] == 2
    refused(StoreDeniedError, "may not do that")
