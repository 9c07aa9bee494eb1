"""When a seal says that its part is complete: only where the copy surely came to its end."""

from __future__ import annotations

from pathlib import Path

import pyarrow.fs as pafs
import pytest
import ray.cloudpickle
from ray import tune

from tests.unit.test_late_errors import Connected, copy
from tune_sync.checkpoint import Checkpoint
from tune_sync.filesystem import SyncHandler
from tune_sync.homes.home import LocalHome
from tune_sync.manifest import Seal, seal_from_json, to_json
from tune_sync.run_filesystem import RunFileSystem
from tune_sync.spec import Options, Spec


@pytest.fixture
def home(tmp_path: Path) -> LocalHome:
    (tmp_path / "home/x").mkdir(parents=True)
    return LocalHome(tmp_path / "home/x")


@pytest.fixture
def filesystem(home: LocalHome) -> RunFileSystem:
    return filesystem_with(home, Options(wait_for="staged"))


def filesystem_with(home: LocalHome, options: Options) -> RunFileSystem:
    spec = Spec("parts", str(home.root.parent), "x", "", None, options)
    return RunFileSystem(SyncHandler(spec, Connected(home)))  # type: ignore[arg-type]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    for name in ("a", "b", "c"):
        (tmp_path / "source" / name).write_text(name)
    return tmp_path / "source"


def seals(home: LocalHome) -> list[Seal]:
    return [seal_from_json(f.read_bytes(), str(f)) for f in home.root.rglob("seal.json")]


def test_a_report_seals_its_part_as_complete(
    home: LocalHome, filesystem: RunFileSystem, source: Path
) -> None:
    checkpoint = copy(source, filesystem, 0)
    (seal,) = seals(home)
    assert (len(seal.files), seal.ranks_count, seal.is_all) == (3, 1, True)
    ray.cloudpickle.dumps(checkpoint)
    assert seals(home) == [seal]


def test_so_does_one_where_reports_wait_for_a_directory(home: LocalHome, source: Path) -> None:
    """Its driver may be killed, or have no room, before it has placed it."""
    copy(source, filesystem_with(home, Options()), 0)
    (seal,) = seals(home)
    assert (len(seal.files), seal.is_all) == (3, True)


def test_so_does_a_checkpoint_of_ours(
    home: LocalHome, filesystem: RunFileSystem, source: Path
) -> None:
    ours = Checkpoint.from_directory(source)
    target = f"{filesystem.handler.experiment_root}/trial/checkpoint_000000"
    filesystem.create_dir(target)
    pafs.copy_files(
        ours.path, target, source_filesystem=ours.filesystem, destination_filesystem=filesystem
    )
    Checkpoint(path=target, filesystem=filesystem)
    (seal,) = seals(home)
    assert (len(seal.files), seal.is_all) == (3, True)


def test_what_is_sealed_on_the_way_is_not_complete(
    home: LocalHome, filesystem: RunFileSystem
) -> None:
    target = f"{filesystem.handler.experiment_root}/trial/checkpoint_000000"
    filesystem.create_dir(target)
    with filesystem.open_output_stream(f"{target}/a") as stream:
        stream.write(b"a")
    ray.cloudpickle.dumps(filesystem)
    assert bool(filesystem)
    tune.Checkpoint(path=target.replace("000000", "000001"), filesystem=filesystem)
    (seal,) = seals(home)
    assert seal.ranks_count is None


def test_a_copy_that_failed_half_way_is_never_complete(
    home: LocalHome, filesystem: RunFileSystem, source: Path
) -> None:
    target = f"{filesystem.handler.experiment_root}/trial/checkpoint_000000"
    filesystem.create_dir(target)
    with filesystem.open_output_stream(f"{target}/a") as stream:
        stream.write(b"a")
    ray.cloudpickle.dumps(filesystem)  # seals what there is
    copy(source, filesystem, 1)
    of_first = [len(seal.files) == 1 and seal for seal in seals(home)]
    assert [seal.is_all for seal in of_first if seal] == [False]


def test_what_is_written_after_the_end_of_the_copy_makes_it_incomplete(
    home: LocalHome, filesystem: RunFileSystem
) -> None:
    handler = filesystem.handler
    target = f"{handler.experiment_root}/trial/checkpoint_000000"
    filesystem.create_dir(target)
    with filesystem.open_output_stream(f"{target}/a") as stream:
        stream.write(b"a")
    handler.uploads.copied("trial/checkpoint_000000", 1)
    with filesystem.open_output_stream(f"{target}/b") as stream:
        stream.write(b"b")
    handler.barrier()
    (seal,) = seals(home)
    assert seal.ranks_count is None


def test_seals_of_earlier_versions_know_nothing_of_it() -> None:
    old = b'{"format_version":1,"attempt":"a","rank":0,"sealed_s":1.0,"files":[],"directories":[]}'
    seal = seal_from_json(old, "old")
    assert seal.ranks_count is None and not seal.is_all
    assert b"ranks_count" not in to_json(seal)
    assert seal_from_json(to_json(Seal("a", 0, 1.0, (), (), 2)), "new").ranks_count == 2
