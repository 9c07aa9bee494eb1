"""Who asks for artifacts is told where trials write files that are none."""

from __future__ import annotations

import pytest

from tune_sync import RunConfig, SyncConfig
from tune_sync.new_run import warn_of_left_out


@pytest.mark.parametrize(
    ("is_asked_for", "changes_directory", "is_told"),
    [(True, "0", True), (True, "1", False), (True, None, False), (False, "0", False)],
)
def test_files_that_trials_leave_outside_of_their_directories_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    is_asked_for: bool, changes_directory: str | None, is_told: bool,
) -> None:  # fmt: skip
    monkeypatch.delenv("RAY_CHDIR_TO_TRIAL_DIR", raising=False)
    if changes_directory is not None:
        monkeypatch.setenv("RAY_CHDIR_TO_TRIAL_DIR", changes_directory)
    config = RunConfig(name="x", sync_config=SyncConfig(sync_artifacts=is_asked_for))
    warn_of_left_out(config.storage_filesystem.handler)
    assert ("stays on their nodes" in caplog.text) == is_told
    assert ("self.logdir" in caplog.text) == is_told
