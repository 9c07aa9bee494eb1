"""`CloudSyncer` and `SharedDirectorySyncer` by hand: directories that belong to no run.

    python -m examples.plain_directories                     # to a directory of this machine
    python -m examples.plain_directories s3://bucket/path    # or gs://, abfs://, root://

No Ray is needed. Credentials and endpoint of a bucket come from the environment.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tune_sync import CloudSyncer, SharedDirectorySyncer


def main(remote: str = "") -> None:
    with tempfile.TemporaryDirectory() as folder:
        syncer = CloudSyncer() if "://" in remote else SharedDirectorySyncer()
        remote = f"{remote or folder + '/mounted'}/plots"

        plots = Path(folder, "plots")
        (plots / "draft").mkdir(parents=True)
        (plots / "draft/loss.txt").write_text("0.5")
        (plots / "loss.txt").write_text("0.1")
        syncer.sync_up(str(plots), remote, exclude=["draft"])
        syncer.wait_or_retry()  # raises what went wrong

        syncer.sync_down(remote, f"{folder}/fetched")
        syncer.wait_or_retry()
        fetched = sorted(path.name for path in Path(folder, "fetched").iterdir())
        print("fetched:", *fetched)
        assert fetched == ["loss.txt"]

        syncer.delete(remote)
        syncer.wait_or_retry()
        syncer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
