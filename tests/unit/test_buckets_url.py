"""URLs of buckets."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from tune_sync import SyncConfig, restore_kwargs, status
from tune_sync.buckets.engines import make_client
from tune_sync.buckets.opening import check_bucket
from tune_sync.buckets.url import BucketUrl, is_bucket_url, parse_bucket_url
from tune_sync.destination import resolve_destination
from tune_sync.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("s3://bucket/a/b", BucketUrl("s3", "bucket/a/b")),
        ("s3://bucket/a/", BucketUrl("s3", "bucket/a")),
        ("s3a://bucket", BucketUrl("s3", "bucket")),
        ("gcs://b/x y", BucketUrl("gs", "b/x y")),
        ("s3://b/x%20y", BucketUrl("s3", "b/x y")),
        ("s3://b/x%2520%23&ü", BucketUrl("s3", "b/x%20#&ü")),
        ("az://b/x", BucketUrl("abfs", "b/x")),
        ("memory://b/x", BucketUrl("memory", "b/x")),
        ("root://host:1094//a/b", BucketUrl("root", "host:1094/a/b")),
        ("fsspec+root://host:1094/a/b", BucketUrl("root", "host:1094/a/b")),
        ("xroot://host//a", BucketUrl("root", "host/a")),
        ("sftp://me@host:22/a/b", BucketUrl("sftp", "me@host:22/a/b")),
        ("fsspec+ssh://host/a", BucketUrl("sftp", "host/a")),
    ],
)
def test_a_url_is_read(text: str, url: BucketUrl) -> None:
    assert parse_bucket_url(text) == url
    assert f"{url.bucket}/{url.prefix}".strip("/") == url.path
    assert parse_bucket_url(str(url)) == url and " " not in str(url)


@pytest.mark.parametrize(
    "text",
    [
        "s3://", "s3:///", "/mnt/dir", "file:///mnt/dir", "s3://b/../c", "s3://b//c", "s3://b/./c",
        "s3://b/x?endpoint_override=http://1.2.3.4", "s3://key:secret@b/x",
        "root://host//a//b", "root://host///a", "root://host",
        "sftp://host", "sftp://me@host/", "sftp://host//a", "sftp:///a",
        "s3://b/100%", "s3://b/a#b", "s3://b/%ff", "s3://b/a%0Ab", "s3://b/%2e%2e/x", "s3://b/a%5Cb",
    ],
)  # fmt: skip
def test_what_is_no_root_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_bucket_url(text)


@pytest.mark.parametrize(
    "text",
    [
        "s3://key:hidden@b/x", "root://user:hidden@host", "s://key:hidden@b",
        "sftp://me:hidden@host/x", "ssh://me%3Ahidden@host/x", "sftp://me:hidden@x@host/x",
        "abfs://box@acc.dfs.core.windows.net/a?sv=1&sig=hidden",
    ],
)  # fmt: skip
def test_a_secret_in_a_url_is_not_repeated(text: str) -> None:
    """Whatever else is wrong with it."""
    with pytest.raises(ConfigError, match="secrets do not belong into the URL") as caught:
        parse_bucket_url(text)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "s3:/key:hidden@b/p", "s3//key:hid/hidden@b/p", "key:hidden@b/p", "S3://key:hidden@b/p",
        "s3:key:hidden@b/p", "s3:/b/p?token=hidden", "/key:hidden@b/p",
        "s3:/key:hidden?hidden@b/p", "s3://key:hidden?hidden@b/p",
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "use",
    [
        lambda text: SyncConfig(upload_dir=text), lambda text: restore_kwargs(text),
        lambda text: resolve_destination(text, "/other"),
        lambda text: resolve_destination(None, text), status,
    ],
)  # fmt: skip
def test_a_secret_in_a_url_that_is_mistyped_is_not_repeated(
    text: str, use: Callable[[str], object]
) -> None:
    try:
        use(text)
    except (ConfigError, FileNotFoundError) as error:
        assert "hidden" not in str(error) + str(error.__cause__)


@pytest.mark.parametrize("engine", ["obstore", "pyarrow", "fsspec"])
@pytest.mark.parametrize(
    "endpoint_url",
    ["http://user:hidden@127.0.0.1:1", "http://127.0.0.1:1/?token=hidden", "user:hidden@host"],
)
def test_a_secret_in_an_endpoint_is_refused_and_not_repeated(
    engine: str, endpoint_url: str
) -> None:
    options = {"endpoint_url": endpoint_url, "engine": engine}
    with pytest.raises(ConfigError, match="the endpoint of s3://b/p") as caught:
        check_bucket(parse_bucket_url("s3://b/p"), options, write=False)
    assert "hidden" not in str(caught.value) and caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("s3:///path/x", "no bucket behind s3://; write s3://bucket/path/x"),
        ("s3a:////path", "no bucket behind s3://; write s3://bucket/path"),
        ("gs:///path", "no bucket behind gs://"),
        ("abfs:///path", "no bucket behind abfs://"),
        ("root:///host//path", "no host behind root://; write root://host:1094//"),
        ("sftp:///data/x", "no host behind sftp://; write sftp://user@host:22/data/x"),
    ],
)
def test_a_path_is_not_taken_for_the_bucket_that_is_missing(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_bucket_url(text)
    assert parse_bucket_url("hdfs:///path/x").path == "path/x"  # the node of its settings


@pytest.mark.parametrize("text", ["s3://bucket/x ", " s3://bucket/x", "s3://bucket/x\u00a0"])
def test_a_blank_around_a_url_is_no_part_of_a_name(text: str) -> None:
    with pytest.raises(ConfigError, match=r"blank before or behind the URL.*%20"):
        SyncConfig(upload_dir=text)
    assert parse_bucket_url("s3://bucket/x%20").path == "bucket/x "


@pytest.mark.parametrize("text", ["s3://$BUCKET/x", "s3://${BUCKET}/x", "gs://b/runs/$USER"])
def test_a_variable_is_not_taken_for_a_name(text: str) -> None:
    with pytest.raises(ConfigError, match=r"\$\{?\w+\}? stays as it is.*give its value"):
        SyncConfig(upload_dir=text)
    SyncConfig(upload_dir="s3://b/a$/x")
    url = "s3://b/%24USER"
    assert resolve_destination(SyncConfig(upload_dir=url).upload_dir, None).path == "b/$USER"
    assert str(parse_bucket_url(url)) == url
    assert restore_kwargs(f"{url}/exp")["path"] == "b/$USER/exp"


def test_the_account_of_azure_is_told_where_it_belongs() -> None:
    with pytest.raises(ConfigError, match=r"abfs://box/a/b.*account_name.*'?acc") as caught:
        parse_bucket_url("abfss://box@acc.dfs.core.windows.net/a/b")
    assert "secrets" not in str(caught.value)


def test_paths_of_xrootd_are_written_as_absolute_ones() -> None:
    url = parse_bucket_url("root://host:1094/a b/c")
    assert str(url) == "root://host:1094//a%20b/c"


def test_paths_and_drives_are_no_buckets() -> None:
    assert is_bucket_url("s3://b") and is_bucket_url("hdfs://h/x")
    for text in ("/mnt", "file:///mnt", "local://x", "c://x", "relative/path"):
        assert not is_bucket_url(text)


@pytest.mark.parametrize(
    ("url", "options", "words"),
    [
        ("s3://b/x", {"secrets": "x"}, "secrets of .*: known are key, .*, tries_count"),
        ("root://h//x", {"secrets": "x"}, "secrets of .*: known are .*, tries_count; XRootD"),
        ("sftp://h/x", {"secrets": "x"}, "secrets of .*: known are username, .*, tries_count"),
        ("sftp://h:x/x", {}, "no host in it, or a port that is no number"),
        ("s3://b/x", {"engine": "none"}, "none"),
        ("nosuch://b/x", {}, "nosuch"),
    ],
)
def test_what_no_library_knows_is_told(url: str, options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_client(parse_bucket_url(url), options)


@pytest.mark.parametrize("engine", ["obstore", "pyarrow"])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"key": 1}, "storage_options key of s3://b/x: strings"),
        ({"secret": b"x", "region": 2}, "secret, region of"),
        ({"request_timeout_s": "soon"}, "seconds are needed.*soon"),
        ({"connect_timeout_s": None}, "seconds are needed"),
    ],
)
def test_options_of_a_wrong_type_are_told_by_name(
    engine: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        url = parse_bucket_url("s3://b/x")
        make_client(url, {"engine": engine, "key": "a", "secret": "b"} | options).check()


def test_a_missing_library_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    found = "tune_sync.buckets.engines.importlib.util.find_spec"
    monkeypatch.setattr(found, lambda name: None)
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    for scheme in ("gs", "gcs"):  # where another test loaded it
        monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, scheme, raising=False)
    with pytest.raises(ConfigError, match=r"pip install obstore$"):
        make_client(parse_bucket_url("gs://b/x"), {})
    with pytest.raises(ConfigError, match=r"no library for root:// .*: pip install fsspec-xrootd$"):
        make_client(parse_bucket_url("root://host//x"), {})
    with pytest.raises(ConfigError, match=r"no library for sftp:// .*: pip install paramiko$"):
        make_client(parse_bucket_url("ssh://host/x"), {})
    with pytest.raises(ConfigError, match=r"pip install obstore$"):
        make_client(parse_bucket_url("s3://b/x"), {"engine": "obstore"})
