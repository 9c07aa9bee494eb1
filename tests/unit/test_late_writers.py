"""Writers that were given up and still write: what they write is never taken for anything."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tune_sync.homes.commit import Committer
from tune_sync.homes.store import LocalStore
from tune_sync.layout import staged_key

CHECKPOINT = "trial_a/checkpoint_000000"


@pytest.mark.parametrize("round_number", range(20))
def test_an_attempt_can_be_discarded_while_it_is_written(tmp_path: Path, round_number: int) -> None:
    store = LocalStore(tmp_path)
    committer = Committer(store)
    attempt = committer.begin(CHECKPOINT)
    data = staged_key(CHECKPOINT, attempt)
    errors: list[type[BaseException]] = []

    def write(writer: int) -> None:
        try:
            for number in range(1_000_000):
                store.write_at(f"{data}/{writer}-{number}", 0, b"late")
        except OSError as error:
            errors.append(type(error))

    writers = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for writer in writers:
        writer.start()
    time.sleep(0.005)
    committer.discard_attempt(CHECKPOINT, attempt)
    for writer in writers:
        writer.join(60)
    assert errors == [FileNotFoundError] * 3
    assert not list((tmp_path / ".tune_sync/trash").iterdir())
    assert store.list(f".tune_sync/staging/{CHECKPOINT}") == []
    committer.discard_attempt(CHECKPOINT, attempt)
