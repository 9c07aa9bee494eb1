"""The syncers of tune_sync, and a small one of a user's own, do what every syncer has to."""

from __future__ import annotations

import itertools
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

import pytest

from tests.stores.seaweed import S3Server, make_bucket, s3, seaweed
from tune_sync import CallbackSyncer, CommandSyncer, RunConfig
from tune_sync.run import Run
from tune_sync.syncers.base import BackgroundSyncer, Syncer
from tune_sync.syncers.cloud import CloudSyncer
from tune_sync.syncers.object_store import ObjectStoreSyncer
from tune_sync.syncers.shared_directory import SharedDirectorySyncer
from tune_sync.testing.syncer_contract import SyncerContract, Tree, tree_of

SOON_S = 30.0


class CopyingSyncer(BackgroundSyncer):
    """Copies to a directory of this machine: the least that a syncer has to do."""

    def sync_up(self, local_dir: str, remote_dir: str, exclude: list[str] | None = None) -> bool:
        return self._start(lambda: self._copy(local_dir, remote_dir, exclude))

    def sync_down(self, remote_dir: str, local_dir: str, exclude: list[str] | None = None) -> bool:
        return self._start(lambda: self._copy(remote_dir, local_dir, exclude))

    def delete(self, remote_dir: str) -> bool:
        return self._start(lambda: shutil.rmtree(remote_dir))

    def _copy(self, source: str, target: str, exclude: list[str] | None) -> None:
        def ignore(here: str, names: list[str]) -> list[str]:
            inner = {name: Path(here, name).relative_to(source) for name in names}
            return [n for n in names if any(inner[n].match(pattern) for pattern in exclude or ())]

        shutil.copytree(source, target, ignore=ignore, dirs_exist_ok=True)


class TestCopyingSyncer(SyncerContract):
    def make_syncer(self, tmp_path: Path) -> Syncer:
        return CopyingSyncer()

    def remote_dir(self, tmp_path: Path) -> str:
        return str(tmp_path / "remote")


def copy_into(source: str, target: str) -> None:
    shutil.copytree(source, target, dirs_exist_ok=True)


class TestCallbackSyncer(SyncerContract):
    def make_syncer(self, tmp_path: Path) -> Syncer:
        return CallbackSyncer(upload=copy_into, download=copy_into, delete=shutil.rmtree)

    def remote_dir(self, tmp_path: Path) -> str:
        return str(tmp_path / "remote")


COPY_INTO = """sh -c 'mkdir -p "$2" && cp -R "$1/." "$2"' sh {source} {target}"""


class TestCommandSyncer(SyncerContract):
    def make_syncer(self, tmp_path: Path) -> Syncer:
        return CommandSyncer(upload=COPY_INTO, download=COPY_INTO, delete="rm -r {target}")

    def remote_dir(self, tmp_path: Path) -> str:
        return str(tmp_path / "re mote; touch $HOME/injected '")


class TestObjectStoreSyncer(SyncerContract):
    @pytest.fixture(autouse=True)
    def run(self, tmp_path: Path) -> Iterator[Run]:
        self.config = RunConfig(name="exp", storage_path=str(tmp_path / "home"))
        run = self.config.storage_filesystem.handler.start()
        yield run
        run.close()

    def make_syncer(self, tmp_path: Path) -> Syncer:
        return ObjectStoreSyncer(self.config.storage_filesystem)

    def remote_dir(self, tmp_path: Path) -> str:
        return f"{self.config.storage_path}/exp/trial/plots"


class TestSharedDirectorySyncer(SyncerContract):
    def make_syncer(self, tmp_path: Path) -> Syncer:
        return SharedDirectorySyncer()

    def remote_dir(self, tmp_path: Path) -> str:
        return str(tmp_path / "shared/remote")

    def look(self, tmp_path: Path, remote_dir: str) -> Tree:
        return tree_of(Path(remote_dir))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with seaweed(tmp_path_factory.mktemp("weed")) as running:
        make_bucket(running)
        yield running


class OnS3(SyncerContract):
    """Looked at through a client of S3 that is none of ours."""

    keeps_empty_directories = False
    engine = ""

    @pytest.fixture(autouse=True)
    def _at(self, server: S3Server) -> None:
        self.server, self.prefix = server, f"a b/{uuid.uuid4().hex}"

    def make_syncer(self, tmp_path: Path) -> Syncer:
        return CloudSyncer({**self.server.options, "engine": self.engine})

    def remote_dir(self, tmp_path: Path) -> str:
        return f"s3://bucket/{self.prefix}"

    def look(self, tmp_path: Path, remote_dir: str) -> Tree:
        client, start = s3(self.server), f"{remote_dir.removeprefix('s3://bucket/')}/"
        found: Tree = {}
        for entry in client.list_objects_v2(Bucket="bucket", Prefix=start).get("Contents", ()):
            key = entry["Key"].removeprefix(start)
            if not entry["Key"].endswith("/"):  # pyarrow leaves such in place of directories
                answer = client.get_object(Bucket="bucket", Key=entry["Key"])
                found[key] = answer["Body"].read()
                found |= dict.fromkeys(map(str, list(PurePosixPath(key).parents)[:-1]))
        return found


class TestCloudSyncerByObstore(OnS3):
    engine = "obstore"


class TestCloudSyncerByArrow(OnS3):
    engine = "pyarrow"


class TestCloudSyncerByFsspec(OnS3):
    engine = "fsspec"


class Skipping(CopyingSyncer):
    """Skips a command while nobody has waited for the one before."""

    def sync_up(self, local_dir: str, remote_dir: str, exclude: list[str] | None = None) -> bool:
        return self._thread is None and super().sync_up(local_dir, remote_dir, exclude)


class Silent(CopyingSyncer):
    """Keeps its failures to itself."""

    def wait(self, timeout: float | None = None) -> None:
        with suppress(OSError):
            super().wait(timeout)


class Greedy(CopyingSyncer):
    """Takes no notice of what is excluded."""

    def _copy(self, source: str, target: str, exclude: list[str] | None) -> None:
        super()._copy(source, target, None)


class Beside(CopyingSyncer):
    """Does not wait for what it has given up: that is written once what came later is there."""

    count = itertools.count()  # of all that are made: they look at one directory
    has_read, may_write, has_written = (threading.Event() for _ in range(3))

    def _start(self, command: Callable[[], None]) -> bool:
        self._thread = None
        super()._start(command)
        return self.has_read.wait(SOON_S)

    def _copy(self, source: str, target: str, exclude: list[str] | None) -> None:
        found = {path: path.read_bytes() for path in Path(source).iterdir() if path.is_file()}
        number = next(self.count)
        self.has_read.set()
        if number == 0:
            self.may_write.wait(SOON_S)
        elif number > 1:
            self.has_written.wait(SOON_S)  # it looks
            found = {path: path.read_bytes() for path in found}
        Path(target).mkdir(parents=True, exist_ok=True)
        for path, data in found.items():
            Path(target, path.name).write_bytes(data)
        (self.may_write if number else self.has_written).set()


@pytest.mark.parametrize(
    ("wrong", "test"),
    [
        (Beside, "test_what_took_too_long_writes_nothing_over_what_came_later"),
        (Skipping, "test_commands_follow_each_other_and_none_is_skipped"),
        (Silent, "test_a_failure_is_raised_and_the_next_command_works"),
        (Greedy, "test_what_is_excluded_stays"),
    ],
)
def test_the_contract_sees_a_wrong_syncer(tmp_path: Path, wrong: type[Syncer], test: str) -> None:
    make = {"make_syncer": lambda self, tmp_path: wrong()}
    contract = type("WrongContract", (TestCopyingSyncer,), make)()
    with pytest.raises(AssertionError):
        getattr(contract, test)(tmp_path)
