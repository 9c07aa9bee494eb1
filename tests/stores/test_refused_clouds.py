"""Buckets of Google's and Azure's kind that cannot be used: told before training and by restores.

A refusal is never taken for an empty place: nothing is started in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ray import tune

from tests.local.trainables import stumbles
from tests.stores.azure import AzureServer, azurite
from tests.stores.google import GoogleServer, account, fake_google
from tests.stores.proxy import Faults, proxy
from tune_sync import RunConfig, SyncConfig, restore_kwargs, restore_or_start
from tune_sync.errors import ConfigError, StoreDeniedError, StoreUnreachableError

SOON_S = 60.0
NOBODY = "http://127.0.0.1:9"
ENGINES = ("obstore", "fsspec")
# Options by scheme, URL of the server, engine.
OptionsOf = Callable[[str, str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Of servers, by scheme."""
    with (
        fake_google(tmp_path_factory.mktemp("google")) as google,
        azurite(tmp_path_factory.mktemp("azurite")) as azure,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        yield {"gs": google.endpoint_url, "abfs": azure.endpoint_url}


@pytest.fixture
def options_of(tmp_path: Path) -> OptionsOf:
    def made(scheme: str, url: str, engine: str) -> dict[str, Any]:
        if scheme == "abfs":
            return AzureServer(url).options(engine)
        return GoogleServer(url, account(tmp_path / "account.json", url)).options(engine)

    return made


def begin(place: str, options: dict[str, Any]) -> None:
    sync = SyncConfig(upload_dir=place, storage_options=options)
    tune.Tuner(stumbles, run_config=RunConfig(name="exp", sync_config=sync))


def go_on_or_begin(place: str, options: dict[str, Any]) -> None:
    sync = SyncConfig(upload_dir=place, storage_options=options)
    restore_or_start(stumbles, run_config=RunConfig(name="exp", sync_config=sync))


def go_on(place: str, options: dict[str, Any]) -> None:
    tune.Tuner.restore(trainable=stumbles, **restore_kwargs(f"{place}/exp", options))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("scheme", "fault"), [("gs", "denied"), ("gs", "expired"), ("abfs", "denied")]
)
def test_a_refusal_is_told_and_starts_nothing(
    urls: dict[str, str], options_of: OptionsOf, scheme: str, fault: str, engine: str
) -> None:
    place, faults = f"{scheme}://bucket/runs", Faults(share=1.0, kinds=[fault])
    with proxy(urls[scheme], faults) as url:
        options = options_of(scheme, url, engine)
        for call in (begin, go_on_or_begin, go_on):
            with pytest.raises(StoreDeniedError, match=f"^{place}/exp: cannot "):
                call(place, options)
    assert not [line for line in faults.requests if line.startswith("PUT")]
    with pytest.raises(FileNotFoundError):
        go_on(place, options_of(scheme, urls[scheme], engine))


@pytest.mark.parametrize(
    ("scheme", "engine"),
    # The server of Google's protocol tells obstore of an error of its own in place of this.
    [("gs", "fsspec"), ("abfs", "obstore"), ("abfs", "fsspec")],
)
def test_a_missing_bucket_is_told_before_training(
    urls: dict[str, str], options_of: OptionsOf, scheme: str, engine: str
) -> None:
    with pytest.raises(ConfigError, match="create the bucket, or correct the URL"):
        begin(f"{scheme}://nowhere/runs", options_of(scheme, urls[scheme], engine))


@pytest.mark.parametrize("scheme", ["gs", "abfs"])
def test_a_server_that_does_not_answer_is_told_soon(options_of: OptionsOf, scheme: str) -> None:
    start_s = time.monotonic()
    with pytest.raises(StoreUnreachableError, match="endpoint"):
        begin(f"{scheme}://bucket/runs", options_of(scheme, NOBODY, "obstore"))
    assert time.monotonic() - start_s < SOON_S
