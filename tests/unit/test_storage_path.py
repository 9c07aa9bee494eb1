"""What a storage path may name, and what it may not leave as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tune_sync import RunConfig, SyncConfig
from tune_sync.errors import ConfigError


def resolved(path: str) -> str:
    return str(RunConfig(name="x", storage_path=path, sync_config=SyncConfig()).storage_path)


def test_variables_and_the_home_directory_are_resolved(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SCRATCH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in ("$SCRATCH/x", "${SCRATCH}/x", "~/x", f"file://{tmp_path}/x"):
        assert resolved(path) == f"{tmp_path}/x"


@pytest.mark.parametrize("path", ["$NO_SUCH/x", "${NO_SUCH}/x", "~no_such_user/x", "/a/$NO_SUCH"])
def test_what_cannot_be_resolved_is_refused_and_named(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.delenv("NO_SUCH", raising=False)
    with pytest.raises(ConfigError, match=r"there is no (\$\{?NO_SUCH|~no_such_user)"):
        resolved(path)


def test_a_directory_that_is_called_so_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("NO_SUCH", raising=False)
    (tmp_path / "$NO_SUCH").mkdir()
    for path in (f"{tmp_path}/$NO_SUCH", f"{tmp_path}/$NO_SUCH/new"):
        assert resolved(path) == path
    with pytest.raises(ConfigError, match=r"there is no \$NO_OTHER"):
        resolved(f"{tmp_path}/$NO_SUCH/$NO_OTHER/new")


def test_a_scheme_in_capitals_is_told_as_it_has_to_be() -> None:
    with pytest.raises(ConfigError, match="write it in lower case: s3://"):
        SyncConfig(upload_dir="S3://bucket/path")
