"""URLs of fsspec whose first part is a host, and libraries that cannot be opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import infer_storage_options

from tune_sync.buckets.opening import check_bucket, open_bucket
from tune_sync.buckets.url import parse_bucket_url
from tune_sync.errors import ConfigError


class OfHost(LocalFileSystem):  # type: ignore[misc]
    """This machine's files, as those of a host that the URL names."""

    protocol = "sftp"
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
    fsspec.register_implementation("sftp", OfHost, clobber=True)
    bucket = open_bucket(parse_bucket_url(f"sftp://box:2222{tmp_path}/all"))
    bucket.put("exp/state.json", b"{}")
    assert (tmp_path / "all/exp/state.json").read_bytes() == b"{}"
    assert bucket.get("exp/state.json") == b"{}"
    assert set(OfHost.hosts) == {("box", 2222)}


def test_options_that_a_library_wants_are_named() -> None:
    with pytest.raises(ConfigError, match=r"github://.*storage_options.*'org' and 'repo'"):
        check_bucket(parse_bucket_url("github://a/b"), None, write=True)


def test_hadoop_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="JAVA_HOME"):
        check_bucket(parse_bucket_url("hdfs://nobody/x"), None, write=True)
