"""URLs of fsspec whose first part is a host, and libraries that cannot be opened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import infer_storage_options

from tune_sync import CommandSyncer, SyncConfig, cleanup, restore_kwargs, status
from tune_sync.buckets.fsspec_bucket import FsspecBucket
from tune_sync.buckets.opening import check_bucket, open_bucket
from tune_sync.buckets.url import parse_bucket_url
from tune_sync.errors import ConfigError


class OfHost(LocalFileSystem):  # type: ignore[misc]
    """This machine's files, as those of a host that the URL names."""

    protocol = "smb"
    hosts: list[tuple[str, int]] = []

    def __init__(self, host: str, port: int = 22, **more: Any) -> None:
        super().__init__(**more)
        self.hosts.append((host, port))

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(infer_storage_options(path)["path"])

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        found = infer_storage_options(path)
        return {name: found[name] for name in ("host", "port") if name in found}


def test_the_host_is_no_part_of_the_path(tmp_path: Path) -> None:
    fsspec.register_implementation("smb", OfHost, clobber=True)
    bucket = open_bucket(parse_bucket_url(f"smb://box:2222{tmp_path}/all"))
    bucket.put("exp/state.json", b"{}")
    assert (tmp_path / "all/exp/state.json").read_bytes() == b"{}"
    assert bucket.get("exp/state.json") == b"{}"
    assert set(OfHost.hosts) == {("box", 2222)}


@pytest.mark.parametrize("scheme", ["ftp", "sftp", "ssh"])
def test_what_is_refused_is_not_to_a_command(scheme: str) -> None:
    place = f"{scheme}://box/results"
    if scheme == "ftp":
        says = "ftp:// cannot be used: .*answer alike.*sftp://.*CommandSyncer"
        with pytest.raises(ConfigError, match=says):
            SyncConfig(upload_dir=place)
    copy = CommandSyncer("put {source} {target}", "get {source} {target}", "rm {target}")
    assert SyncConfig(upload_dir=place, syncer=copy).upload_dir == place


@pytest.mark.parametrize("door", [cleanup, status, restore_kwargs])
@pytest.mark.parametrize("scheme", ["ftp", "https", "nosuch", "tar", "simplecache", "jupyter"])
def test_all_doors_refuse_what_a_run_does_and_name_no_setting_that_was_not_given(
    scheme: str, door: Callable[[str], object]
) -> None:
    place = f"{scheme}://box/results/exp"
    with pytest.raises(ConfigError) as by_run:
        SyncConfig(upload_dir=place)
    with pytest.raises(ConfigError) as by_door:
        door(place)
    why = str(by_run.value).removeprefix("SyncConfig(upload_dir=...): ")
    assert str(by_door.value).removeprefix(f"restore_kwargs({place!r}): ") == why
    assert "upload_dir" not in why and "s3:// (pip install obstore)" in why


@pytest.mark.parametrize(
    ("schemes", "says"),
    [
        ("http https data dvc git github gist reference", "is only read from"),
        ("zip tar libarchive", "is one archive"),
        (
            "simplecache filecache blockcache cached dir generic dask asyncwrapper asynclocal",
            "another filesystem; give the URL, or the path, of that one",
        ),
        ("jupyter jlab", "in one request"),
        ("memory", "memory of one process"),
    ],
)
@pytest.mark.parametrize("door", [lambda url: SyncConfig(upload_dir=url), restore_kwargs])
def test_what_is_no_place_for_the_results_of_many_processes_is_refused(
    door: Callable[[str], object], schemes: str, says: str
) -> None:
    for scheme in schemes.split():
        with pytest.raises(ConfigError, match=rf"{scheme}:// .*{says}.*s3:// \(pip install"):
            door(f"{scheme}://box/results/exp")


def test_options_that_a_library_wants_are_named() -> None:
    with pytest.raises(ConfigError, match=r"dbfs://.*storage_options.*'instance' and 'token'"):
        check_bucket(parse_bucket_url("dbfs://a/b"), None, write=True)


def test_hadoop_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="JAVA_HOME"):
        check_bucket(parse_bucket_url("hdfs://nobody/x"), None, write=True)


class WithWordsOfItsOwn(LocalFileSystem):  # type: ignore[misc]
    """Says in its own words that there is no such file, as some libraries do."""

    def rm_file(self, path: str) -> None:
        if not self.exists(path):
            raise OSError("550 No such file or directory.")
        if path.endswith("kept"):
            raise OSError("550 Not today.")
        super().rm_file(path)

    def cat_file(self, path: str, *args: Any, **kwargs: Any) -> Any:
        if not self.isfile(path):
            raise OSError("550 Is a directory.")
        return super().cat_file(path, *args, **kwargs)


def test_what_is_not_there_is_known_whatever_a_library_calls_it(tmp_path: Path) -> None:
    bucket = FsspecBucket(WithWordsOfItsOwn, str(tmp_path), makes_dirs=True)
    for name in ("x", "y", "kept"):
        bucket.put(f"d/{name}", b"1")
    bucket.delete(["d/none", "d/x"])
    assert [found.key for found in bucket.list("d")] == ["d/kept", "d/y"]
    for absent in ("d", "d/x"):
        with pytest.raises(FileNotFoundError):
            bucket.get(absent)
    with pytest.raises(OSError, match="Not today"):
        bucket.delete(["d/kept", "d/y"])


@pytest.mark.parametrize("refusal", ["403 Forbidden", "timed out"])
def test_what_could_not_be_asked_is_not_taken_for_absent(tmp_path: Path, refusal: str) -> None:
    class Refuses(LocalFileSystem):  # type: ignore[misc]
        def rm_file(self, path: str) -> None:
            raise OSError(refusal)

        def cat_file(self, path: str, *args: Any, **kwargs: Any) -> Any:
            raise OSError(refusal)

        def info(self, path: str, **kwargs: Any) -> Any:
            raise FileNotFoundError(path)  # as libraries do that take any error for this

    bucket = FsspecBucket(Refuses, str(tmp_path), makes_dirs=True)
    for call in (lambda: bucket.get("d/x"), lambda: bucket.delete(["d/x"])):
        with pytest.raises(OSError, match=refusal):
            call()
