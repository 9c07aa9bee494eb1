"""Records that are not what they should be, and things that others put among ours."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from tests.manifests import manifests_of
from tests.unit.staged import CHECKPOINT, placed, sealed
from tune_sync import layout
from tune_sync.errors import DamagedError
from tune_sync.homes.bucket.records import BucketRecords
from tune_sync.homes.commit import Committer
from tune_sync.homes.store import LocalStore
from tune_sync.manifest import Manifest, to_json
from tune_sync.testing.memory_bucket import MemoryBucket

NEXT = "trial/checkpoint_000001"
OUTSIDE = [{"path": "../../x", "size_bytes": 1, "digest": "0"}]
FOREIGN = [{"checkpoint": "other/checkpoint_000009"}, {"checkpoint": ""}, {"files": OUTSIDE}]


@pytest.fixture
def committer(tmp_path: Path) -> Committer:
    made = Committer(LocalStore(tmp_path / "root"), owner="me")
    made.record(placed(made, {"model": b"1"}))
    return made


def change(committer: Committer, key: str, fields: dict[str, Any]) -> None:
    path = committer.store.root / key  # type: ignore[attr-defined]  # a LocalStore
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize("fields", FOREIGN)
def test_a_foreign_manifest_is_damage_of_this_one_checkpoint(
    committer: Committer, fields: dict[str, Any]
) -> None:
    change(committer, layout.manifest_key(CHECKPOINT), fields)
    with pytest.raises(DamagedError, match=CHECKPOINT):
        committer.manifest(CHECKPOINT)


@pytest.mark.parametrize("fields", FOREIGN)
def test_so_it_is_in_a_bucket(fields: dict[str, Any]) -> None:
    bucket = MemoryBucket()
    body = json.loads(to_json(Manifest(CHECKPOINT, "me", 1.0, ())))
    bucket.objects[layout.manifest_key(CHECKPOINT)] = json.dumps(body | fields).encode()
    with pytest.raises(DamagedError, match=CHECKPOINT):
        BucketRecords(bucket).manifest(CHECKPOINT)


@pytest.mark.parametrize("fields", FOREIGN)
def test_a_foreign_intent_is_dropped_and_replaces_nothing(
    committer: Committer, fields: dict[str, Any]
) -> None:
    attempt = sealed(committer, {"model": b"2"})
    intent = layout.intent_key(CHECKPOINT, attempt)
    committer.store.write_at(intent, 0, committer.store.read(layout.manifest_key(CHECKPOINT)))
    change(committer, intent, fields)
    assert committer.recover().dropped == (CHECKPOINT,)
    assert committer.manifest(CHECKPOINT) is not None
    assert committer.store.read(f"{CHECKPOINT}/model") == b"1"


def test_a_seal_that_names_another_attempt_counts_for_nothing(committer: Committer) -> None:
    attempt = sealed(committer, {"model": b"2"}, NEXT)
    change(committer, layout.seal_key(NEXT, attempt), {"attempt": "another", "ranks_count": 1})
    assert committer.recover().dropped == (NEXT,)
    assert committer.manifest(CHECKPOINT) is not None


def test_files_of_others_among_manifests_are_no_checkpoints(committer: Committer) -> None:
    for name in ("README", ".DS_Store", "checkpoint_000000.json.bak"):
        committer.store.write_at(f"{layout.MANIFESTS_DIR}/trial/{name}", 0, b"theirs")
    assert committer.recover().forgotten == ()
    assert [manifest.checkpoint for manifest in manifests_of(committer)] == [CHECKPOINT]


def test_a_checkpoint_that_was_moved_and_linked_is_deleted_without_what_it_points_to(
    committer: Committer, tmp_path: Path
) -> None:
    moved = (tmp_path / "root" / CHECKPOINT).rename(tmp_path / "moved")
    (tmp_path / "root" / CHECKPOINT).symlink_to(moved)
    committer.retire(CHECKPOINT)
    committer.record(placed(committer, {"model": b"2"}, NEXT))
    committer.recover()
    assert (moved / "model").read_bytes() == b"1"
    assert [manifest.checkpoint for manifest in manifests_of(committer)] == [NEXT]


@pytest.mark.parametrize("what", [CHECKPOINT, layout.parent(CHECKPOINT)])
def test_what_was_moved_to_a_disk_that_is_not_mounted_counts_again_when_it_is(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    root, disk = tmp_path / "root", tmp_path / "disk"
    committer = Committer(LocalStore(root))
    committer.record(placed(committer, {"a": b"1"}))
    disk.mkdir()
    (root / what).rename(disk / "moved")
    (root / what).symlink_to(disk / "moved")
    away = disk.rename(tmp_path / "away")
    with caplog.at_level(logging.WARNING, "ray.tune_sync"):
        assert committer.recover().forgotten == ()
    assert f"{CHECKPOINT} is reached through a link to what is not there" in caplog.text
    assert committer.manifest(CHECKPOINT) is None
    away.rename(disk)
    assert committer.manifest(CHECKPOINT) is not None
    (root / what).unlink()
    assert committer.recover().forgotten == (CHECKPOINT,)
