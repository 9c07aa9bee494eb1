"""A search whose results are in a bucket; prints what came of it, as anybody would read it there.

The argument is that of ``search.py``, and: ``make_bucket``; ``copy``: copy a prefix to another one
first; ``ship``: give workers the driver's settings of the store in their environment;
``keys_of``: run nothing, only tell the keys below this path, once its lease is older by ``age_s``;
``scheme``: "s3" or "gs".
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import ray

from tests.hosts.drivers import trainables
from tests.hosts.drivers.search import tuner_of
from tune_sync.layout import LEASE_KEY

# On the driver's host, from when the bucket was looked at and training is about to start.
BEGUN = Path("/tmp/begun")
SETTINGS = ("AWS_", "GOOGLE_", "STORAGE_EMULATOR_", "CLOUD_STORAGE_", "GCSFS_")


def plain_s3() -> pafs.S3FileSystem:
    """pyarrow's own client, which only in URLs takes the endpoint from the environment."""
    return pafs.S3FileSystem(
        endpoint_override=os.environ["AWS_ENDPOINT_URL"], allow_bucket_creation=True
    )


def make_bucket(name: str) -> None:
    """Make it unless it is there."""
    if plain_s3().get_file_info(name).type == pafs.FileType.NotFound:
        plain_s3().create_dir(name)


def keys_below(path: str, scheme: str = "s3") -> list[str]:
    """All objects below "bucket/path", as plain pyarrow lists them."""
    plain = plain_s3() if scheme == "s3" else pafs.FileSystem.from_uri(f"{scheme}://{path}")[0]
    found = plain.get_file_info(pafs.FileSelector(path, recursive=True))
    return sorted(f.path.removeprefix(path + "/") for f in found if f.is_file)


def let_run_out(path: str, age_s: float) -> None:
    """As if the driver of an experiment had died so much earlier."""
    s3, key = plain_s3(), f"{path}/{LEASE_KEY}"
    held = json.loads(s3.open_input_file(key).readall())
    for sign in ("heartbeat_s", "heartbeat_up_s"):
        held[sign] -= age_s
    with s3.open_output_stream(key) as out:
        out.write(json.dumps(held).encode())


def copy_prefix(source: str, target: str) -> None:
    """What a tool of the store would do."""
    s3 = plain_s3()
    for key in keys_below(source):
        with s3.open_output_stream(f"{target}/{key}") as out:
            out.write(s3.open_input_file(f"{source}/{key}").readall())


def describe_trial(result: Any) -> dict[str, Any]:
    with result.checkpoint.as_directory() as local:
        state, digest = trainables.read_checkpoint(local), trainables.whole_digest(local)
    return {
        "state": state,
        "digest": digest,
        "reported": result.metrics["digest"],
        "step": result.metrics["step"],
        "node": result.metrics["node"],
        "resumed_at": result.metrics.get("resumed_at"),
        "path": result.checkpoint.path,
        "error": str(result.error or ""),
        "stored": [stored(*found) for found in result.best_checkpoints],
    }


def stored(checkpoint: Any, metrics: dict[str, Any]) -> tuple[str, str]:
    """The digest of a checkpoint, and that of what was reported."""
    with checkpoint.as_directory() as local:
        return trainables.whole_digest(local), metrics["digest"]


def main() -> None:
    spec = json.loads(sys.argv[1])
    settings = {k: v for k, v in os.environ.items() if k.startswith(SETTINGS) and "ship" in spec}
    if "make_bucket" in spec:
        make_bucket(spec["make_bucket"])
    if "keys_of" in spec:
        if "age_s" in spec:
            let_run_out(spec["keys_of"], spec["age_s"])
        print("RESULT " + json.dumps({"keys": keys_below(spec["keys_of"])}), flush=True)
        return
    ray.init(log_to_driver=False, runtime_env={"env_vars": settings})
    if "copy" in spec:
        copy_prefix(*spec["copy"])
    tuner = tuner_of(spec)
    BEGUN.touch()
    results = tuner.fit()
    trials = sorted(map(describe_trial, results), key=lambda t: str(t["path"]))
    found = {
        "driver": socket.gethostname(),
        "path": results.experiment_path,
        "trials": trials,
        "keys": keys_below(results.experiment_path, spec.get("scheme", "s3")),
    }
    print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
