"""What a node has staged, older than what is stored of its trial, and was never stored itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ray import tune

from tests.manifests import manifests_of
from tests.unit.test_left_behind import NODE, OWNER, Reached, leave
from tests.unit.test_node_sender import FIRST, SECOND, Shaky, report
from tune_sync import RunConfig, SyncConfig
from tune_sync.agents.left_on_nodes import Wanted, send_here
from tune_sync.homes.bucket.home import BucketHome
from tune_sync.spec import Options, Spec
from tune_sync.testing.memory_bucket import MemoryBucket

THIRD = "t/checkpoint_000002"


@pytest.fixture(params=["directory", "bucket"])
def home(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    """It has the third one."""
    home = BucketHome(MemoryBucket()) if request.param == "bucket" else Shaky(tmp_path / "home")
    store(home, THIRD)
    return home


def store(home: Any, checkpoint: str) -> None:
    upload = report(home, checkpoint)
    home.committer.record(home.committer.place(checkpoint, attempts=[upload.attempt]).manifest)


def published(home: Any) -> list[str]:
    return sorted(m.checkpoint for m in manifests_of(home.committer))


def restored(tmp_path: Path, home: Any, *, keeps_all: bool) -> list[str]:
    """What its nodes have sent; what can be published is, when this returns."""
    options = Options(staging_dir=str(tmp_path / "staging"), memory_dir=str(tmp_path))
    plain = Spec("key", "bucket/results", "exp", "1" * 32, None, options, "s3").to_plain()
    wanted = Wanted(frozenset(), {"t": THIRD}, frozenset(published(home)), keeps_all)
    sent, why = send_here(plain, Reached(home), wanted, [])
    assert why == ""
    home.committer.keeps_all = keeps_all
    home.committer.recover()
    return sent


def test_where_nothing_is_deleted_it_is_published(
    tmp_path: Path, home: Any, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "staging" / OWNER / NODE
    store(home, SECOND)
    leave(root, FIRST, SECOND)
    before = home.committer.manifest(SECOND)
    assert restored(tmp_path, home, keeps_all=True) == [FIRST]
    assert published(home) == [FIRST, SECOND, THIRD]
    assert home.committer.manifest(SECOND) == before
    assert not root.exists()
    assert "dropped" not in caplog.text


def test_where_it_may_have_been_deleted_it_is_dropped_by_name(
    tmp_path: Path, home: Any, caplog: pytest.LogCaptureFixture
) -> None:
    store(home, SECOND)
    leave(tmp_path / "staging" / OWNER / NODE, FIRST, SECOND)
    assert restored(tmp_path, home, keeps_all=False) == []
    assert published(home) == [SECOND, THIRD]
    assert f"{FIRST} was staged on node {NODE} and is not stored; it is dropped" in caplog.text
    assert f"{SECOND} was" not in caplog.text


def test_what_is_published_is_not_published_again(tmp_path: Path) -> None:
    """Its node had not heard that it was, and sent it once more. In a bucket that is refused."""
    home = Shaky(tmp_path / "home")
    for checkpoint in (FIRST, THIRD):
        store(home, checkpoint)
    before = home.committer.manifest(FIRST)
    report(home, FIRST)
    home.committer.keeps_all = True
    assert home.committer.recover().dropped == (FIRST,)
    assert home.committer.manifest(FIRST) == before


@pytest.mark.parametrize(
    ("sync", "num_to_keep", "keeps_all"),
    [
        (SyncConfig(wait_for="staged"), None, True),
        (SyncConfig(wait_for="staged"), 2, False),
        (SyncConfig(wait_for="staged", keep_best=2), None, False),
        (SyncConfig(wait_for="staged", sync_on_checkpoint=False), None, False),
    ],
)
def test_a_run_knows_whether_anything_is_deleted(
    tmp_path: Path, sync: SyncConfig, num_to_keep: int | None, *, keeps_all: bool
) -> None:
    checkpoints = tune.CheckpointConfig(num_to_keep, checkpoint_score_attribute="score")
    config = RunConfig(
        name="exp", storage_path=str(tmp_path), sync_config=sync, checkpoint_config=checkpoints
    )
    assert config.storage_filesystem.handler.spec.options.keeps_all == keeps_all
