"""Directories that a trial names as checkpoints are copied beside its reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from tune_sync.homes.home import LocalHome
from tune_sync.transfer.upload import CheckpointUpload
from tune_sync.transfer.uploads import CHECKPOINTS_KEPT, TOLD_COUNT, Uploads

CHECKPOINT = "trial/checkpoint_000000"


@pytest.mark.parametrize("count", [TOLD_COUNT, 2 * CHECKPOINTS_KEPT])
def test_directories_that_are_named_as_checkpoints_push_out_none_that_is_reported(
    tmp_path: Path, count: int
) -> None:
    uploads, driver = Uploads(), Uploads()
    home = LocalHome(tmp_path)

    def copy(number: int) -> CheckpointUpload:
        upload = uploads.begin(home, f"trial/checkpoint_{number:06d}", 0)
        upload.add_small("model", b"bytes", "digest")
        return upload

    reported = copy(0)
    uploads.copied(CHECKPOINT, 1)
    for number in range(count):
        copy(1000 + number)
    uploads.seal(CHECKPOINT)
    for number in range(count):
        copy(2000 + number)
    uploads.seal()
    driver.heard_of(uploads.reported())
    assert driver.take(CHECKPOINT) == [reported.attempt]
    assert len({checkpoint for checkpoint, _, _ in uploads.reported()}) == TOLD_COUNT + 1
