from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stores.seaweed import S3Server, seaweed


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with seaweed(tmp_path_factory.mktemp("weed")) as running:
        yield running
