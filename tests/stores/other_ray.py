"""Writes an experiment of this Ray into `tests/fixtures`. Run as a program, when a format changes:

python -m tests.stores.other_ray
"""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from pathlib import Path

import pyarrow.fs as pafs
import ray
from ray import tune

from tests.local.trainables import stumbles
from tests.stores.seaweed import seaweed
from tune_sync import RunConfig, SyncConfig

FIXTURES = Path(__file__).parents[1] / "fixtures"
NAME = "experiment_of_ray_{}.tar.gz"


def plain_s3() -> pafs.S3FileSystem:
    """pyarrow's own client, which only in URLs takes the endpoint from the environment."""
    return pafs.S3FileSystem(
        endpoint_override=os.environ["AWS_ENDPOINT_URL"], allow_bucket_creation=True
    )


def run(url: str) -> None:
    """A search whose trial fails after three steps, stored in a bucket."""
    place, _, name = url.rpartition("/")
    config = RunConfig(name=name, verbose=0, sync_config=SyncConfig(upload_dir=place))
    results = tune.Tuner(stumbles, run_config=config).fit()
    assert len(results.errors) == 1, results.errors


def pack(path: str, file: Path) -> None:
    """Write all objects below "bucket/path" into an archive."""
    store = plain_s3()
    found = store.get_file_info(pafs.FileSelector(path, recursive=True))
    with tarfile.open(file, "w:gz") as archive:
        for entry in found:
            if entry.is_file and not entry.base_name.startswith("error."):  # tell where it ran
                data = store.open_input_file(entry.path).readall()
                member = tarfile.TarInfo(entry.path.removeprefix(path + "/"))
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def unpack(file: Path, path: str) -> None:
    """Put all objects of an archive below "bucket/path"."""
    store = plain_s3()
    with tarfile.open(file) as archive:
        for member in archive:
            body = archive.extractfile(member)
            assert body is not None
            with store.open_output_stream(f"{path}/{member.name}") as out:
                out.write(body.read())


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, seaweed(Path(directory)) as server:
        os.environ.update(server.env)
        plain_s3().create_dir("bucket")
        ray.init("local", num_cpus=1, include_dashboard=False, object_store_memory=100_000_000)
        run("s3://bucket/runs/exp")
        pack("bucket/runs/exp", FIXTURES / NAME.format(ray.__version__))
        ray.shutdown()


if __name__ == "__main__":
    main()
