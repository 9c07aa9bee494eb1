"""What one supported Ray wrote into a bucket goes on under another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import ray
from ray import tune

from tests.hosts.drivers.trainables import whole_digest
from tests.local.trainables import stumbles
from tests.stores.other_ray import FIXTURES, NAME, plain_s3, run, unpack
from tests.stores.seaweed import S3Server, seaweed

pytestmark = pytest.mark.lowest

VERSIONS = ("2.43.0", "2.60.0")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with seaweed(tmp_path_factory.mktemp("weed")) as running, pytest.MonkeyPatch.context() as patch:
        for name, value in running.env.items():
            patch.setenv(name, value)
        plain_s3().create_dir("bucket")
        ray.init("local", num_cpus=1, include_dashboard=False, object_store_memory=100_000_000)
        yield running
        ray.shutdown()


def goes_on(url: str) -> None:
    (result,) = tune.Tuner.restore(url, stumbles, resume_errored=True).fit()
    assert result.error is None
    assert (result.metrics["step"], result.metrics["resumed_at"]) == (5, 3)
    assert len(result.best_checkpoints) == 6
    for checkpoint, metrics in result.best_checkpoints:
        with checkpoint.as_directory() as local:
            assert whole_digest(local) == metrics["digest"]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_experiment_of_another_ray_goes_on(server: S3Server, version: str) -> None:
    unpack(FIXTURES / NAME.format(version), f"bucket/of/{version}")
    goes_on(f"s3://bucket/of/{version}")


def test_an_experiment_of_this_ray_goes_on(server: S3Server) -> None:
    run("s3://bucket/runs/exp")
    goes_on("s3://bucket/runs/exp")
