"""A run with write-behind on this machine whose destination takes nothing for a while."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ray import tune

from tests.hosts.searches import wait_for
from tests.local.trainables import HALF, halts
from tune_sync import RunConfig, SyncConfig
from tune_sync.layout import MANIFESTS_DIR, STAGING_DIR

TIMEOUT_S = 150.0


class Halting:
    """A run that halts half way, and at its end.

    Args:
        storage: A directory of the test's own.
        wait_for: See `SyncConfig`.
        name: Of the run.
    """

    def __init__(self, storage: Path, wait_for: str, name: str) -> None:
        self.root = storage / "results" / name
        self._notes = storage / f"notes-{name}"
        self._notes.mkdir(parents=True)
        self.root.parent.mkdir(exist_ok=True)
        sync = SyncConfig(
            upload_dir=self.root.parent,
            wait_for=wait_for,
            staging_dir=storage / "staging" if wait_for == "staged" else None,
        )
        self._tuner = tune.Tuner(
            halts,
            param_space={"notes": str(self._notes)},
            run_config=RunConfig(name=name, verbose=0, sync_config=sync),
        )
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._fit, daemon=True)
        self._thread.start()

    def wait_until_stored(self, count: int) -> None:
        manifests = self.root / MANIFESTS_DIR
        wait_for(lambda: len([*manifests.glob("*/*.json")]) == count, f"{count} stored", TIMEOUT_S)

    def go_on(self) -> None:
        (self._notes / "go").touch()

    def end(self) -> None:
        self.go_on()
        (self._notes / "end").touch()
        self._thread.join(TIMEOUT_S)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """The destination takes no checkpoint as long as the block.

        All that was sent before is stored, and what is left of its way may go.
        """
        staging = self.root / STAGING_DIR
        aside = staging.with_name("aside")
        if staging.exists():
            staging.rename(aside)
        staging.touch()
        try:
            yield
        finally:
            staging.unlink()  # whoever sends makes it again, maybe at once
            shutil.rmtree(aside, ignore_errors=True)

    def _fit(self) -> None:
        try:
            self._tuner.fit()
        except Exception as error:
            self.error = error


@contextmanager
def halting(storage: Path, wait_for: str, name: str) -> Iterator[Halting]:
    """A run that is half way: so much is stored."""
    run = Halting(storage, wait_for, name)
    try:
        run.wait_until_stored(HALF)
        yield run
    finally:
        run.end()


def eventually(holds: Callable[[], bool]) -> None:
    wait_for(holds, "it", TIMEOUT_S)
