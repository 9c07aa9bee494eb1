"""Spare files where room is short, and where what was expected is not written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_node_sender import SECOND
from tests.unit.test_spare_files import LARGE, make, spare_files, with_spare
from tune_sync.fastpath import Slots, spares
from tune_sync.fastpath import slots as slots_module
from tune_sync.fastpath.takes import TAKES, grow
from tune_sync.homes.digests import digest_of
from tune_sync.transfer.upload import CheckpointUpload

__all__ = ["make"]


def test_the_limit_of_slots_counts_spare_files_as_room(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = with_spare(make)
    total_bytes = 100 * LARGE

    def room(root: Path) -> tuple[int, int]:
        return total_bytes - sum(path.stat().st_size for path in spare_files(node)), total_bytes

    monkeypatch.setattr(slots_module, "room_bytes", room)
    monkeypatch.setattr(slots_module, "memory_available_bytes", lambda: -1)
    slots = Slots(node.budget.folder.parent, max_checkpoints_in_memory=1)
    try:
        assert slots._limit() == total_bytes // 2
    finally:
        slots.close()


def test_one_that_is_given_up_as_it_is_taken_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    attempt = folder / "run/node/attempt"
    (attempt / "data").mkdir(parents=True)
    folder.chmod(0o700)
    (attempt / "data/large").write_bytes(b"a" * LARGE)
    grow(attempt, LARGE)
    spares.Spares(attempt.parent).keep(attempt)
    assert (attempt / TAKES).stat().st_size == 0
    mode_of_new = spares._mode_of_new

    def given_up(path: Path) -> int:
        spares.give_up(folder, 1)
        return mode_of_new(path)

    monkeypatch.setattr(spares, "_mode_of_new", given_up)
    assert spares.take(attempt, attempt / "new", LARGE, folder) == 0
    assert (attempt / TAKES).stat().st_size == 0
    assert not (attempt / "new").exists()


def test_what_was_expected_and_is_no_file_of_it_is_not_there(make: Any) -> None:
    node = with_spare(make)
    upload = CheckpointUpload(node.staging, SECOND, 0)
    upload.add_small("small", b"s", digest_of(b"s"))
    node.staging.expect(upload.key("gone"), LARGE)  # its source went before it was opened
    upload.copied(1)
    assert upload.seal()
    found = [path.name for path in node.memory.rglob(f"{upload.attempt}/data/*")]
    assert found == ["small"]
