"""Searches whose results are in buckets of Google's and of Azure's kind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray import tune

from tests.hosts.drivers.trainables import whole_digest
from tests.local.trainables import stumbles
from tests.stores.azure import azurite
from tests.stores.google import fake_google
from tune_sync import RunConfig, SyncConfig
from tune_sync.buckets.opening import open_bucket
from tune_sync.buckets.url import parse_bucket_url
from tune_sync.errors import ExperimentExistsError


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """By scheme; what is needed to use them is in the environment."""
    with (
        fake_google(tmp_path_factory.mktemp("google")) as google,
        azurite(tmp_path_factory.mktemp("azurite")) as azure,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in {**google.env, **azure.env}.items():
            patch.setenv(name, value)
        ray.init("local", num_cpus=2, include_dashboard=False, object_store_memory=200_000_000)
        yield {"gs": google, "abfs": azure}
        ray.shutdown()


@pytest.mark.parametrize("engine", ["obstore", "fsspec"])
@pytest.mark.parametrize("scheme", ["gs", "abfs"])
def test_a_search_is_stored_and_goes_on_from_its_url(
    servers: dict[str, Any], scheme: str, engine: str
) -> None:
    url = parse_bucket_url(f"{scheme}://bucket/results/{engine}")
    options = servers[scheme].options(engine)
    sync = SyncConfig(upload_dir=f"{scheme}://bucket/results", storage_options=options)
    config: Any = RunConfig(name=engine, verbose=0, sync_config=sync)
    config.checkpoint_config = tune.CheckpointConfig(num_to_keep=2)
    assert len(tune.Tuner(stumbles, run_config=config).fit().errors) == 1
    told = re.escape(f'**restore_kwargs("{url}", storage_options)')
    with pytest.raises(ExperimentExistsError, match=told):
        tune.Tuner(stumbles, run_config=config)

    plain = f"fsspec+{url}" if scheme == "abfs" else str(url)  # credentials are in the environment
    tuner = tune.Tuner.restore(plain, stumbles, resume_errored=True)
    (result,) = tuner.fit()
    assert result.error is None
    assert (result.metrics["step"], result.metrics["resumed_at"]) == (5, 3)
    with result.checkpoint.as_directory() as local:
        assert whole_digest(local) == result.metrics["digest"]

    keys = [o.key for o in open_bucket(url).list("")]
    names = {k.split("/")[1] for k in keys if "/checkpoint_" in k and k[0] != "."}
    assert names == {"checkpoint_000004", "checkpoint_000005"}
    ours = {k.split("/")[1] for k in keys if k.startswith(".tune_sync/")}
    assert ours == {"format.json", "manifests", "tuner.pkl"}
