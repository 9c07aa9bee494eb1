"""A `file://` URL names the directory that Ray reads when it is given the same one to restore."""

from __future__ import annotations

from pathlib import Path

import pyarrow.fs as pafs
import pytest
from ray import tune

from tune_sync import RunConfig, SyncConfig
from tune_sync.destination import parse_destination, resolve_storage_path
from tune_sync.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:///x/a%20b", "/x/a b"),
        ("file:///x/a%2520b%23%3F", "/x/a%20b#?"),
        ("file:///x/%7Ea/%24HOME", "/x/~a/$HOME"),
        ("file:///x/%C3%BC", "/x/ü"),
        ("file:/x/y", "/x/y"),
    ],
)
def test_it_is_read_as_ray_reads_it(url: str, path: str) -> None:
    assert pafs.FileSystem.from_uri(url)[1] == path
    assert resolve_storage_path(url) == parse_destination(url).path == path
    assert RunConfig(storage_path=url).storage_path == path
    assert RunConfig(sync_config=SyncConfig(upload_dir=url)).storage_path == path


def test_what_ray_does_not_take_may_be_written_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESULTS_AT", "/results")
    for url, path in (
        ("file:///x/a b/ü", "/x/a b/ü"),
        ("file://localhost/x", "/x"),
        ("file://LOCALHOST/x", "/x"),
        ("local:///x/a%20b", "/x/a b"),
        ("file://$RESULTS_AT/a%20b", "/results/a b"),
    ):
        assert parse_destination(url).path == path
        assert RunConfig(sync_config=SyncConfig(upload_dir=url)).storage_path == path


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("file://host/x", "file:///mnt/results.*CommandSyncer"),
        ("file://x", "file:///mnt/results"),
        ("file://localhost", "file:///mnt/results"),
        ("file://localhost:80/x", "file:///mnt/results"),
        ("file://", "file:///mnt/results"),
        ("file:///x/a#b", "%23"),
        ("file:///x/100%", "%25"),
        ("file:///x/a?b", "%3F"),
        ("file:///x/%ff", "UTF-8"),
    ],
)
def test_what_names_no_directory_of_this_host_is_refused(url: str, says: str) -> None:
    for use in (
        lambda: SyncConfig(upload_dir=url),
        lambda: RunConfig(storage_path=url),
        lambda: parse_destination(url),
    ):
        with pytest.raises(ConfigError, match=says):
            use()


def test_a_restore_by_the_url_of_a_run_finds_it_and_goes_on_there(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/a%20b%2520c"
    sync_config = SyncConfig(upload_dir=url)
    tune.Tuner(print, run_config=RunConfig(name="e%20 f", sync_config=sync_config))
    assert (tmp_path / "a b%20c/e%20 f/tuner.pkl").is_file()
    restored = tune.Tuner.restore(f"{url}/e%2520%20f", trainable=print)
    run_config = restored._local_tuner._run_config
    assert (run_config.storage_path, run_config.name) == (f"{tmp_path}/a b%20c", "e%20 f")


@pytest.mark.parametrize("place", ["file:///x/a%00b", "file:///x/a%0Ab", "/x/a\nb", "/x/a\0b"])
def test_what_cannot_be_seen_is_no_part_of_a_path(place: str) -> None:
    with pytest.raises(ConfigError, match=r"upload_dir=.*has a newline, or a sign that cannot be"):
        SyncConfig(upload_dir=place)
