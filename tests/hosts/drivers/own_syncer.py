"""A search on hosts whose results a syncer of the user's sends from the driver's node to a bucket.

The argument is that of ``search.py``, and: ``syncer``: a name in `SYNCERS`; ``fetch``: bring the
experiment that ``restore`` names back from ``sync.upload_dir`` first.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import ray

from tests.hosts.drivers import s3_tool
from tests.hosts.drivers.bucket import keys_below
from tests.hosts.drivers.search import describe, tuner_of
from tune_sync import CallbackSyncer, CommandSyncer, Syncer, fetch_experiment

TOOL = f"{sys.executable} {s3_tool.__file__}"


class OldSyncer(Syncer):
    """As written for Ray up to 2.6: starts a command, and waits for it when it is asked to."""

    def __init__(self, sync_period: float = 300.0) -> None:
        super().__init__(sync_period=sync_period)
        self._process: Any = None
        self._argv: list[str] = []

    def sync_up(self, local_dir: str, remote_dir: str, exclude: Any = None) -> bool:
        return self._start("up", local_dir, remote_dir)

    def sync_down(self, remote_dir: str, local_dir: str, exclude: Any = None) -> bool:
        return self._start("down", remote_dir, local_dir)

    def delete(self, remote_dir: str) -> bool:
        return self._start("rm", remote_dir)

    def _start(self, *words: str) -> bool:
        if self._process and self._process.poll() is None:
            return False
        self._argv = [*TOOL.split(), *words]
        self.retry()
        return True

    def retry(self) -> None:
        self._process = subprocess.Popen(self._argv)

    def wait(self, timeout: float | None = None) -> None:
        if self._process and self._process.wait(timeout):
            raise RuntimeError(f"{self._argv} failed")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_process": None}


SYNCERS = {
    "command": lambda: CommandSyncer(
        f"{TOOL} up {{source}} {{target}}", f"{TOOL} down {{source}} {{target}}",
        f"{TOOL} rm {{target}}",
    ),
    "callback": lambda: CallbackSyncer(s3_tool.up, s3_tool.down, s3_tool.rm),
    "old": OldSyncer,
}  # fmt: skip


def main() -> None:
    spec = json.loads(sys.argv[1])
    syncer: Syncer = SYNCERS[spec["syncer"]]()
    ray.init(log_to_driver=False)
    url = f"{spec['sync']['upload_dir']}/{spec['name']}"
    if "fetch" in spec:
        fetch_experiment(url, Path(os.path.expanduser(spec["restore"])), syncer)
    spec["sync"]["syncer"] = syncer
    results = tuner_of(spec).fit()
    found = {"driver": socket.gethostname(), "keys": keys_below(url.removeprefix("s3://"))}
    print("RESULT " + json.dumps({**describe(results), **found}), flush=True)


if __name__ == "__main__":
    main()
