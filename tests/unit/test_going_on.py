"""What an ended run left in pickles of Ray's search gets the filesystem of the run that goes on."""

from __future__ import annotations

from pathlib import Path

import ray.cloudpickle

from tune_sync.config import SyncConfig
from tune_sync.destination import Destination
from tune_sync.new_run import make_filesystem
from tune_sync.run_filesystem import RunFileSystem


def made(storage: Path, on_existing: str, name: str = "exp") -> RunFileSystem:
    place = Destination(str(storage))
    return make_filesystem(SyncConfig(), place, name, on_existing)


def handed_on(filesystem: RunFileSystem) -> RunFileSystem:
    """As a trial gets it that a restored search makes."""
    found = ray.cloudpickle.loads(ray.cloudpickle.dumps(filesystem))
    assert isinstance(found, RunFileSystem)
    return found


def test_the_filesystem_of_an_ended_run_is_handed_on_as_that_of_the_one_that_goes_on(
    tmp_path: Path,
) -> None:
    ended = made(tmp_path, "error")
    ended.handler.start().give_back()
    next_one, other = made(tmp_path, "resume"), made(tmp_path, "error", "other")
    other.handler.start().begin()
    run = next_one.handler.start()
    assert handed_on(ended).handler is ended.handler, "nothing goes on yet"
    run.begin()
    assert handed_on(ended).handler is next_one.handler
    assert handed_on(next_one).handler is next_one.handler
    assert handed_on(other).handler is other.handler
    run.give_back()
    other.handler.start().give_back()
    assert handed_on(ended).handler is ended.handler
