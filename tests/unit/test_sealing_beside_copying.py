"""Sealing while another thread goes on copying: what is sealed is whole, and later files follow."""

from __future__ import annotations

import threading
from pathlib import Path

from tune_sync.homes.commit import Committer
from tune_sync.homes.home import LocalHome
from tune_sync.layout import seal_key
from tune_sync.manifest import seal_from_json
from tune_sync.transfer.upload import CheckpointUpload

CHECKPOINT = "trial/checkpoint_000000"
FILE_COUNT = 400


def test_sealing_beside_a_copying_thread_never_lists_what_was_not_sent(tmp_path: Path) -> None:
    home = LocalHome(tmp_path)
    upload = CheckpointUpload(home, CHECKPOINT, rank=0)
    done = threading.Event()
    errors: list[Exception] = []

    def seal_often() -> None:
        try:
            while not done.is_set():
                upload.seal()
        except Exception as error:
            errors.append(error)

    sealer = threading.Thread(target=seal_often)
    sealer.start()
    for number in range(FILE_COUNT):
        with upload.open(f"f{number}") as stream:
            stream.write(b"x" * number)
    done.set()
    sealer.join()
    assert not errors
    upload.seal()
    sealed = seal_from_json(home.store.read(seal_key(CHECKPOINT, upload.attempt)), "seal")
    assert len(sealed.files) == FILE_COUNT
    assert len(Committer(home.store).place(CHECKPOINT).manifest.files) == FILE_COUNT


def test_a_second_sealer_returns_after_the_first_has_sealed(tmp_path: Path) -> None:
    entered, go_on = threading.Event(), threading.Event()

    class SlowHome(LocalHome):
        def seal(self, checkpoint: str, seal: object) -> None:
            entered.set()
            assert go_on.wait(60)
            super().seal(checkpoint, seal)

    upload = CheckpointUpload(SlowHome(tmp_path), CHECKPOINT, rank=0)
    first = threading.Thread(target=upload.seal)
    first.start()
    assert entered.wait(60)
    second = threading.Thread(target=upload.seal)
    second.start()
    second.join(0.2)
    assert second.is_alive()
    go_on.set()
    first.join()
    second.join()
    assert (tmp_path / seal_key(CHECKPOINT, upload.attempt)).is_file()
