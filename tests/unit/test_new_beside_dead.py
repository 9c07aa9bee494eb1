"""What a dead run has reported, and nobody has published, is never a new run's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.test_node_sender import report
from tune_sync.buckets.url import parse_bucket_url
from tune_sync.errors import ConfigError, ExperimentExistsError
from tune_sync.homes.bucket.site import BucketSite
from tune_sync.homes.sites import LocalSite, Site
from tune_sync.run import Run
from tune_sync.transfer.uploads import CheckpointUpload

CHECKPOINT = "trial/checkpoint_000003"
TIMEOUT_S = 60.0


@pytest.fixture(params=["directory", "bucket"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Site]:
    url = parse_bucket_url(f"memory://dead-{tmp_path.name}/exp")
    if request.param == "bucket":
        return lambda: BucketSite(url)
    return lambda: LocalSite(tmp_path / "exp")


def die(site: Site, *, seals: bool = True) -> None:
    """Leave what a driver does that is killed before its first state."""
    dead = Run.open(site, "error", TIMEOUT_S, 1)
    if seals:
        report(dead.home, CHECKPOINT, b"dead")
    else:
        CheckpointUpload(dead.home, CHECKPOINT, 0).make_dir("begun")
        dead.home.begin(CHECKPOINT)
    dead.leave()


def test_a_new_run_is_refused_where_one_has_reported(make: Callable[[], Site]) -> None:
    die(make())
    assert make().holds_experiment()
    with pytest.raises(ExperimentExistsError, match=r"Tuner\.restore.*another name"):
        Run.open(make(), "error", TIMEOUT_S, 1)
    run = Run.open(make(), "resume", TIMEOUT_S, 1)
    assert list(run.home.published_keys()) == [CHECKPOINT]
    run.close()


def test_it_is_not_where_one_has_only_begun(make: Callable[[], Site]) -> None:
    die(make(), seals=False)
    assert not make().holds_experiment()
    run = Run.open(make(), "error", TIMEOUT_S, 1)
    assert list(run.home.published_keys()) == []
    run.close()


def test_what_was_reported_is_moved_aside_whole(tmp_path: Path) -> None:
    die(LocalSite(tmp_path / "exp"))
    run = Run.open(tmp_path / "exp", "move_aside", TIMEOUT_S, 1)
    assert list(run.home.published_keys()) == []
    run.close()
    (aside,) = tmp_path.glob("exp.*")
    again = Run.open(aside, "resume", TIMEOUT_S, 1)
    assert list(again.home.published_keys()) == [CHECKPOINT]
    again.close()


def test_in_a_bucket_it_is_not_moved(tmp_path: Path) -> None:
    url = parse_bucket_url(f"memory://dead-{tmp_path.name}/exp")
    die(BucketSite(url))
    with pytest.raises(ConfigError, match="choose another name"):
        Run.open(BucketSite(url), "move_aside", TIMEOUT_S, 1)
