"""What a trial writes besides plain files of checkpoints, in a bucket of a real S3 server."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from ray import tune

import tune_sync
from tests.stores.seaweed import S3Server
from tune_sync import RunConfig, SyncConfig
from tune_sync.buckets.opening import open_bucket
from tune_sync.buckets.url import parse_bucket_url

URL = "s3://bucket/results"
PLOTS = [f"out/plot_{number}.png" for number in range(10)]
LAST = "final.json"


def run(server: S3Server, name: str, trainable: Any, **fields: Any) -> tuple[Any, dict[str, bytes]]:
    """The one result, and all objects of its trial."""
    sync = SyncConfig(upload_dir=URL, storage_options=server.options, **fields)
    config = RunConfig(name=name, verbose=0, sync_config=sync)
    (result,) = tune.Tuner(trainable, run_config=config).fit()
    assert result.error is None
    bucket = open_bucket(parse_bucket_url(f"{URL}/{name}"), server.options)
    keys = [o.key for o in bucket.list("") if not o.key.startswith(".tune_sync/")]
    return result, {k.partition("/")[2]: bucket.get(k) for k in keys if "/" in k}


def plots(config: dict[str, Any]) -> None:
    Path("out").mkdir()
    made = {}
    for name in PLOTS:
        Path(name).write_bytes(os.urandom(3000))
        made[name] = hashlib.sha256(Path(name).read_bytes()).hexdigest()
        tune.report({"made": json.dumps(made)})
    Path(LAST).write_text(json.dumps(made))


def linked(config: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "large").write_bytes(b"0123456789" * 2_000_000)
        (root / "small").write_bytes(b"small")
        os.link(root / "large", root / "large again")
        os.link(root / "small", root / "small again")
        (root / "to small").symlink_to("small")
        tune.report({"step": 0}, checkpoint=tune_sync.Checkpoint.from_directory(root))


def test_every_artifact_of_every_report_and_after_the_last_is_stored(own_server: S3Server) -> None:
    _, stored = run(own_server, "on", plots, sync_artifacts=True)
    made = json.loads(stored[LAST])
    assert sorted(made) == PLOTS
    found = {name: hashlib.sha256(stored[name]).hexdigest() for name in PLOTS}
    assert found == made


def test_no_artifact_is_stored_when_they_are_not_asked_for(own_server: S3Server) -> None:
    _, stored = run(own_server, "off", plots)
    assert {*PLOTS, LAST}.isdisjoint(stored)
    assert "result.json" in stored


def test_links_are_stored_as_the_files_that_they_are(own_server: S3Server) -> None:
    result, stored = run(own_server, "links", linked)
    with result.checkpoint.as_directory() as local:
        found = {path.name: path.read_bytes() for path in Path(local).iterdir()}
    large, small = b"0123456789" * 2_000_000, b"small"
    assert found == {
        "large": large, "large again": large,
        "small": small, "small again": small, "to small": small,
    }  # fmt: skip
    assert {k.removeprefix("checkpoint_000000/"): v for k, v in stored.items()
            if k.startswith("checkpoint_")} == found  # fmt: skip
