from __future__ import annotations

from collections.abc import Iterator

import pytest
import ray

from tests.stores.seaweed import S3Server, make_bucket, seaweed


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with seaweed(tmp_path_factory.mktemp("weed")) as running:
        yield running


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One with a bucket "bucket", and a Ray beside it that knows nothing of it."""
    with seaweed(tmp_path_factory.mktemp("weed")) as running:
        make_bucket(running)
        ray.init("local", num_cpus=2, include_dashboard=False, object_store_memory=200_000_000)
        yield running
        ray.shutdown()
