"""What is said of a place that holds no experiment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tune_sync import cleanup, status
from tune_sync.buckets.url import parse_bucket_url
from tune_sync.homes.bucket.site import BucketSite
from tune_sync.homes.sites import LocalSite


@pytest.mark.parametrize("look", [cleanup, status])
def test_where_no_experiment_is_those_near_it_are_named(
    look: Callable[[str], object], tmp_path: Path
) -> None:
    bucket = f"memory://near-{tmp_path.name}-{look.__name__}/runs"
    LocalSite(tmp_path / "exp").prepare()
    BucketSite(parse_bucket_url(f"{bucket}/exp")).prepare()
    (tmp_path / "exp" / "trial").mkdir()
    for wrong in (tmp_path, tmp_path / "exp" / "trial", bucket):
        meant = f"{bucket if wrong is bucket else tmp_path}/exp"
        with pytest.raises(FileNotFoundError, match=f"holds no experiment .*is {meant} meant"):
            look(str(wrong))
