"""A bucket that is not there is told by whatever is asked of it, but for a look at one object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.stores.seaweed import S3Server
from tune_sync.buckets.opening import open_bucket
from tune_sync.buckets.url import parse_bucket_url
from tune_sync.errors import ConfigError
from tune_sync.homes.bucket.listings import is_there

ASKED: dict[str, Callable[[Any], object]] = {
    "list": lambda bucket: bucket.list("exp"),
    "list_dir": lambda bucket: bucket.list_dir("exp"),
    "get": lambda bucket: bucket.get("exp/x"),
    "range": lambda bucket: bucket.get("exp/x", 0, 1),
    "is there": lambda bucket: is_there(bucket, "exp/x"),
}


@pytest.mark.parametrize("engine", ["obstore", "pyarrow", "fsspec"])
@pytest.mark.parametrize("what", ASKED)
def test_a_bucket_that_is_away_is_never_an_empty_one(
    server: S3Server, engine: str, what: str
) -> None:
    bucket = open_bucket(parse_bucket_url("s3://nowhere/runs"), server.options | {"engine": engine})
    with pytest.raises(ConfigError, match="create the bucket"):
        ASKED[what](bucket)
