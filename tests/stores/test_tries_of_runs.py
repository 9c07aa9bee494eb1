"""How often a request is tried is a setting of a run: four failures, and the fifth try counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ray import tune

from tests.hosts.drivers.trainables import train_n, whole_digest
from tests.stores.proxy import Faults, proxy
from tests.stores.seaweed import S3Server
from tune_sync import RunConfig, SyncConfig, restore_kwargs, run_config_kwargs

URL = "s3://bucket/tries"
FAILURES_COUNT = 4
# A run that hangs would not be over by then.
LIMITS: dict[str, Any] = {"upload_dir": URL, "sync_timeout": 60}


class EachPutFails(Faults):
    """The first puts of each file `blob.bin`."""

    def __init__(self) -> None:
        super().__init__()
        self.tried: Counter[str] = Counter()

    def _next(self, command: str, path: str) -> str:
        if command != "PUT" or "blob.bin" not in path:
            return ""
        with self._counted:
            self.tried[path] += 1
            return "503" if self.tried[path] <= FAILURES_COUNT else ""


@contextmanager
def busy(server: S3Server, tries_count: int) -> Iterator[tuple[EachPutFails, dict[str, Any]]]:
    """A store like that, and options for it."""
    faults = EachPutFails()
    with proxy(server.endpoint_url, faults) as url:
        yield faults, {**server.options, "endpoint_url": url, "tries_count": tries_count}


def assert_whole(result: Any, steps_count: int) -> None:
    assert result.error is None
    assert [metrics["step"] for _, metrics in result.best_checkpoints] == list(range(steps_count))
    for checkpoint, metrics in result.best_checkpoints:
        with checkpoint.as_directory() as local:
            assert whole_digest(local) == metrics["digest"]


def test_the_fifth_try_counts_in_a_tuner_and_in_its_restore(own_server: S3Server) -> None:
    with busy(own_server, FAILURES_COUNT + 1) as (faults, options):
        sync = SyncConfig(storage_options=options, **LIMITS)
        config = RunConfig(name="tuner", verbose=0, sync_config=sync)
        space = {"settings": {"steps": 3, "fail_at": 2}}
        assert len(tune.Tuner(train_n, param_space=space, run_config=config).fit().errors) == 1
        given = restore_kwargs(f"{URL}/tuner", options)
        (result,) = tune.Tuner.restore(trainable=train_n, resume_errored=True, **given).fit()
        assert result.metrics["resumed_at"] == 2
        assert_whole(result, 3)
        assert list(faults.tried.values()) == [FAILURES_COUNT + 1] * 3


def test_the_fifth_try_counts_in_tune_run(own_server: S3Server) -> None:
    with busy(own_server, FAILURES_COUNT + 1) as (faults, options):
        kwargs = run_config_kwargs(SyncConfig(storage_options=options, **LIMITS), name="run")
        space = {"settings": {"steps": 2}}
        (result,) = tune.ResultGrid(tune.run(train_n, config=space, verbose=0, **kwargs))
        assert_whole(result, 2)
        assert list(faults.tried.values()) == [FAILURES_COUNT + 1] * 2


def test_a_run_with_fewer_tries_fails_and_a_restore_with_more_goes_on(own_server: S3Server) -> None:
    with busy(own_server, FAILURES_COUNT) as (faults, options):
        sync = SyncConfig(storage_options=options, **LIMITS)
        config = RunConfig(name="fewer", verbose=0, sync_config=sync)
        space = {"settings": {"steps": 2}}
        (error,) = tune.Tuner(train_n, param_space=space, run_config=config).fit().errors
        assert "blob.bin" in str(error) and "asks for fewer requests" in str(error)
        assert list(faults.tried.values()) == [FAILURES_COUNT]
    with busy(own_server, FAILURES_COUNT + 1) as (_, options):
        given = restore_kwargs(f"{URL}/fewer", options)
        (result,) = tune.Tuner.restore(trainable=train_n, resume_errored=True, **given).fit()
        assert_whole(result, 2)
