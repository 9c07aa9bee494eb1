"""Which remote directories `SharedDirectorySyncer` takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tune_sync import SharedDirectorySyncer
from tune_sync.errors import ConfigError


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "source").mkdir()
    (tmp_path / "source/file").write_text("bytes")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "source"


@pytest.mark.parametrize("form", ["{}/far/x", "file://{}/far/x", "~/../far/x", "../far/x"])
def test_it_is_the_path_that_an_upload_dir_would_be(
    source: Path, tmp_path: Path, form: str
) -> None:
    syncer, remote = SharedDirectorySyncer(), form.format(tmp_path)
    assert syncer.sync_up(str(source), remote)
    syncer.wait()
    assert (tmp_path / "far/x/file").read_text() == "bytes"
    assert syncer.sync_down(remote, str(tmp_path / "back"))
    syncer.wait()
    assert (tmp_path / "back/file").read_text() == "bytes"
    assert syncer.delete(remote)
    syncer.wait()
    assert not (tmp_path / "far/x").exists()
    assert not list((tmp_path / "here").iterdir())


def test_a_bucket_is_refused_by_name(source: Path) -> None:
    syncer = SharedDirectorySyncer()
    for call in (
        lambda: syncer.sync_up(str(source), "s3://bucket/x"),
        lambda: syncer.sync_down("s3://bucket/x", str(source)),
        lambda: syncer.delete("s3://bucket/x"),
    ):
        with pytest.raises(ConfigError, match=r"'s3://bucket/x'.*for a bucket use CloudSyncer"):
            call()
