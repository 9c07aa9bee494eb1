"""The `storage_options` of a run reach its workers, and nothing that is stored or logged."""

from __future__ import annotations

import base64
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import tune

from tests.hosts.drivers.trainables import train_n, whole_digest
from tests.stores.proxy import Faults, proxy
from tests.stores.seaweed import SECRET, S3Server, make_bucket, s3
from tune_sync import RunConfig, SyncConfig
from tune_sync.testing.transport_pair import wait_until

URL = "s3://bucket/results"
SAID, SAID_WITHIN_S = "said for the logs", 60.0
FORMS = (SECRET.encode(), SECRET.encode().hex().encode(), base64.b64encode(SECRET.encode())[:-4])


def talks(config: dict[str, Any]) -> None:
    print(SAID, flush=True)
    train_n(config)


def telling(directory: Path, words: tuple[bytes, ...] = FORMS) -> list[str]:
    """Files below it that hold one of the words."""
    return [str(file) for file in files_below(directory) if holds(file, words)]


def files_below(directory: Path) -> Iterator[Path]:
    for parent, _, names in os.walk(directory):
        yield from (Path(parent, name) for name in names)


def holds(file: Path, words: tuple[bytes, ...]) -> bool:
    try:
        if not stat.S_ISREG(file.lstat().st_mode):
            return False
        data = file.read_bytes()
    except FileNotFoundError:  # it is gone by now
        return False
    return any(word in data for word in words)


class Looks(tune.Callback):  # type: ignore[misc]
    """Looks at what is staged, at each report."""

    def __init__(self, staging: Path) -> None:
        self.staging, self.told, self.seen_count = staging, list[str](), 0

    def on_checkpoint(
        self, iteration: int, trials: list[Any], trial: Any, checkpoint: Any, **info: Any
    ) -> None:
        self.told += telling(self.staging)
        self.seen_count += len(list(files_below(self.staging)))

    def __reduce__(self) -> tuple[Any, ...]:
        return tune.Callback, ()  # into the saved settings


def stored(server: S3Server) -> dict[str, bytes]:
    client = s3(server)
    keys = [o["Key"] for o in client.list_objects_v2(Bucket="bucket")["Contents"]]
    return {key: client.get_object(Bucket="bucket", Key=key)["Body"].read() for key in keys}


@pytest.fixture
def session(server: S3Server) -> Iterator[Path]:
    """A Ray that knows nothing of the server; where all its processes keep and log things."""
    make_bucket(server)
    context = ray.init(
        "local", num_cpus=2, include_dashboard=False, object_store_memory=200_000_000
    )
    yield Path(context.address_info["session_dir"])
    ray.shutdown()


def test_secrets_reach_the_workers_and_nothing_that_is_stored_or_logged(
    server: S3Server, session: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The bucket fails now and then, and that is logged."""
    looks, faults = Looks(tmp_path / "staging"), Faults()
    with proxy(server.endpoint_url, faults) as url:
        options = {**server.options, "endpoint_url": url}
        for wait_for in ("stored", "staged"):
            staging: Any = {"staging_dir": looks.staging} if wait_for == "staged" else {}
            sync = SyncConfig(upload_dir=URL, storage_options=options, wait_for=wait_for, **staging)
            config: Any = RunConfig(name=wait_for, sync_config=sync, callbacks=[looks])
            assert SECRET not in repr(config)
            tuner = tune.Tuner(talks, run_config=config)
            faults.share = 0.1
            (result,) = tuner.fit()
            assert result.error is None
            with result.checkpoint.as_directory() as local:
                assert whole_digest(local) == result.metrics["digest"]
            faults.share = 0.0
    said = ""

    def is_said() -> bool:
        """What trials print comes to the driver by another process, which looks now and then."""
        nonlocal said
        said += "".join(capfd.readouterr())
        return SAID in said

    wait_until(is_said, SAID_WITHIN_S)
    ray.shutdown()  # all is written that its processes log
    assert faults.failed
    assert looks.seen_count and not looks.told
    objects = stored(server)
    assert len(objects) > 10
    assert not [key for key, data in objects.items() if any(word in data for word in FORMS)]
    assert telling(session / "logs", (SAID.encode(),)), "else this test sees nothing"
    assert not telling(session)
    said += "".join(capfd.readouterr())
    assert not [word for word in FORMS if word.decode() in said]
