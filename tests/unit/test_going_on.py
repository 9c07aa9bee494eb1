"""What a filesystem is to who is given it later: by a search, or with a trial."""

from __future__ import annotations

from pathlib import Path

import pyarrow.fs as pafs
import ray.cloudpickle

from tune_sync.agents.connect import RayConnector
from tune_sync.config import SyncConfig
from tune_sync.destination import Destination
from tune_sync.filesystem import reopen_handler
from tune_sync.new_run import make_filesystem
from tune_sync.run_filesystem import RunFileSystem
from tune_sync.spec import Options, Spec


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


def test_a_process_that_is_given_a_trial_again_sends_what_another_one_has_replaced(
    tmp_path: Path,
) -> None:
    """Processes are used again, with `reuse_actors`: a trial comes back to one it was in."""
    spec = Spec("given-again", str(tmp_path), "exp", "", None, Options())
    path = tmp_path / "exp/trial/notes.txt"

    def store(data: bytes, *reported: tuple[str, str, int]) -> None:
        filesystem = pafs.PyFileSystem(reopen_handler(spec.to_plain(), RayConnector(), reported))
        handlers.append(filesystem.handler)
        with filesystem.open_output_stream(str(path)) as stream:
            stream.write(data)

    handlers: list[object] = []
    store(b"of this one")
    path.write_bytes(b"of another one")
    store(b"of this one")
    assert handlers[0] is handlers[1]
    assert path.read_bytes() == b"of this one"
    path.unlink()
    store(b"of this one", ("trial/checkpoint_000000", "a", 0))
    assert not path.exists(), "a checkpoint that a worker reports is not a trial that is given"
