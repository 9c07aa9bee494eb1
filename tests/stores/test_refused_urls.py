"""Restores from URLs that only fsspec knows: `restore_kwargs` tells a refusal from an empty place.

pyarrow, by which Ray reads a plain URL, asks a library's `isfile`, and some say no to any error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import fsspec
import pytest
from ray import tune

from tests.local.trainables import stumbles
from tests.stores.azure import AzureServer, azurite
from tests.stores.xrootd import xrootd
from tune_sync import RunConfig, SyncConfig, restore_kwargs, restore_or_start
from tune_sync.errors import ConfigError, StoreDeniedError, StoreUnreachableError

OTHER_KEY = "d3Jvbmc="


class NotOpened(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """A library that is broken from its start."""

    protocol = "notopened"

    def __init__(self, *args: Any, **options: Any) -> None:
        raise TypeError("unexpected keyword argument")


class NotAsked(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """A library that is broken where it is asked what is there."""

    protocol = "notasked"

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        raise TypeError("unexpected keyword argument")

    ls = info


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureServer]:
    with azurite(tmp_path_factory.mktemp("azurite")) as running:
        yield running


@pytest.fixture(scope="module")
def physics() -> Iterator[str]:
    with xrootd() as running:
        yield running.url


@pytest.mark.parametrize("engine", ["obstore", "fsspec"])
def test_a_wrong_key_of_azure_is_told(azure: AzureServer, engine: str) -> None:
    options = azure.options(engine)
    for name in ("account_key", "connection_string"):
        if name in options:
            key = options[name].partition("AccountKey=")[2].partition(";")[0] or options[name]
            options[name] = options[name].replace(key, OTHER_KEY)
    given = restore_kwargs("abfs://bucket/runs/exp", options)
    with pytest.raises(StoreDeniedError):
        tune.Tuner.restore(trainable=stumbles, **given)
    given = restore_kwargs("abfs://bucket/runs/exp", azure.options(engine))
    with pytest.raises(FileNotFoundError):
        tune.Tuner.restore(trainable=stumbles, **given)


def test_a_plain_url_takes_a_wrong_key_of_azure_for_a_missing_file_as_documented(
    azure: AzureServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in azure.env.items():
        monkeypatch.setenv(name, value)
    key = azure.env["AZURE_STORAGE_ACCOUNT_KEY"]
    wrong = azure.connection.replace(key, OTHER_KEY)
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", wrong)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", OTHER_KEY)
    with pytest.raises(FileNotFoundError, match=r"tuner\.pkl"):
        tune.Tuner.restore("fsspec+abfs://bucket/runs/exp", stumbles)
    with pytest.raises(StoreDeniedError):
        tune.Tuner.restore(trainable=stumbles, **restore_kwargs("abfs://bucket/runs/exp"))


def test_what_xrootd_refuses_is_told(physics: str) -> None:
    with pytest.raises(StoreDeniedError, match="may not do that"):
        tune.Tuner.restore(
            trainable=stumbles, **restore_kwargs(physics.replace("//data", "//elsewhere") + "/exp")
        )
    with pytest.raises(FileNotFoundError):
        tune.Tuner.restore(trainable=stumbles, **restore_kwargs(f"{physics}/never/exp"))
    with pytest.raises(StoreUnreachableError, match="endpoint"):
        given = restore_kwargs("root://nohost.invalid//data/exp")
        tune.Tuner.restore(trainable=stumbles, **given)


@pytest.mark.parametrize(
    ("library", "error", "says"),
    [(NotOpened, ConfigError, "cannot be opened"), (NotAsked, TypeError, "another version")],
)
def test_a_library_that_is_broken_is_told_and_starts_nothing(
    library: type[fsspec.AbstractFileSystem], error: type[Exception], says: str
) -> None:
    fsspec.register_implementation(library.protocol, library, clobber=True)
    url = f"{library.protocol}://bucket/runs"
    pattern = f"^{url}/exp: .*{says}"
    with pytest.raises(error, match=pattern):
        tune.Tuner.restore(trainable=stumbles, **restore_kwargs(f"{url}/exp"))
    run_config = RunConfig(name="exp", sync_config=SyncConfig(upload_dir=url))
    with pytest.raises(error, match=pattern):
        restore_or_start(stumbles, run_config=run_config)
