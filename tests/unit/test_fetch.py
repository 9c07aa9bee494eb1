"""`fetch` says what it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import xxhash
from ray import tune

from tests.unit.staged import CHECKPOINT, placed
from tests.unit.test_late_errors import Connected
from tune_sync import fetch
from tune_sync.errors import ConfigError, DamagedError
from tune_sync.filesystem import SyncHandler
from tune_sync.homes.bucket.home import BucketHome
from tune_sync.homes.commit import Committer
from tune_sync.homes.store import LocalStore
from tune_sync.layout import manifest_key
from tune_sync.manifest import FileEntry, Manifest, to_json
from tune_sync.run_filesystem import RunFileSystem
from tune_sync.spec import Options, Spec
from tune_sync.testing.memory_bucket import MemoryBucket

OF_TRAIN = CHECKPOINT.rpartition("/")[2]  # it has no trial


@pytest.mark.parametrize("nothing", [None, "exp/trial/checkpoint_000000"])
def test_what_is_no_checkpoint_is_refused_before_anything_is_made(
    tmp_path: Path, nothing: Any
) -> None:
    with pytest.raises(ConfigError, match=r"a checkpoint is needed, such as result\.checkpoint"):
        fetch(nothing, tmp_path / "above" / "copy")
    assert list(tmp_path.iterdir()) == []


def test_a_copy_may_have_any_name_that_a_directory_can_have(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made/file").write_text("text")
    found = fetch(tune.Checkpoint.from_directory(tmp_path / "made"), tmp_path / ("n" * 255))
    assert (found / "file").read_text() == "text"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "n" * 255]


@pytest.fixture(params=[CHECKPOINT, OF_TRAIN])
def published(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    key = request.param
    committer = Committer(LocalStore(tmp_path / "exp"))
    committer.record(placed(committer, {"model": b"weights", "step": b"1"}, key))
    return tmp_path / "exp" / key


def test_a_copy_of_what_is_as_it_was_stored_is_made(published: Path, tmp_path: Path) -> None:
    found = fetch(tune.Checkpoint.from_directory(published), tmp_path / "copy")
    assert (found / "model").read_bytes() == b"weights"


@pytest.mark.parametrize("change", ["cut", "another byte", "missing"])
def test_what_is_not_as_it_was_stored_is_named_and_no_copy_is_made(
    published: Path, tmp_path: Path, change: str
) -> None:
    model = published / "model"
    if change == "missing":
        model.unlink()
    else:
        model.write_bytes(b"we" if change == "cut" else b"weighty")
    with pytest.raises(DamagedError, match=r"checkpoint_000000 is not as it was stored: model"):
        fetch(tune.Checkpoint.from_directory(published), tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["exp"]


def test_what_no_disk_has_room_for_is_named(tmp_path: Path) -> None:
    bucket, files = MemoryBucket(), []
    for path in ("model", "model/below"):
        bucket.put(f"{CHECKPOINT}/{path}", b"weights")
        files.append(FileEntry(path, 7, xxhash.xxh3_128_hexdigest(b"weights")))
    bucket.put(manifest_key(CHECKPOINT), to_json(Manifest(CHECKPOINT, "me", 1.0, tuple(files))))
    spec = Spec("fetch", "bucket", "x", "", None, Options(checkpoint_depth=1), "memory")
    connected: Any = Connected(BucketHome(bucket))  # type: ignore[arg-type]
    filesystem = RunFileSystem(SyncHandler(spec, connected))
    with pytest.raises(DamagedError, match="'model' is a file, and 'model/below' would be below"):
        fetch(tune.Checkpoint(f"bucket/x/{CHECKPOINT}", filesystem), tmp_path / "copy")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("key", "depth"), [(CHECKPOINT, 1), (OF_TRAIN, 0)])
def test_what_a_bucket_has_is_copied_whether_or_not_it_is_of_a_trial(
    tmp_path: Path, key: str, depth: int
) -> None:
    bucket = MemoryBucket()
    bucket.put(f"{key}/model", b"weights")
    spec = Spec("fetch", "bucket", "x", "", None, Options(checkpoint_depth=depth), "memory")
    connected: Any = Connected(BucketHome(bucket))  # type: ignore[arg-type]
    filesystem = RunFileSystem(SyncHandler(spec, connected))
    found = fetch(tune.Checkpoint(f"bucket/x/{key}", filesystem), tmp_path / "copy")
    assert (found / "model").read_bytes() == b"weights"
