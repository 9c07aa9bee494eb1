"""`torch.save` by way of a slot of shared memory, or as it is where that cannot be."""

from __future__ import annotations

import logging
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from tune_sync.fastpath import placing, torch_archive, torch_copies
from tune_sync.fastpath.slots import Slots
from tune_sync.fastpath.torch_archive import ArchivePlan
from tune_sync.fastpath.torch_copies import Copies
from tune_sync.process import in_forks

logger = logging.getLogger(__name__)


class Saver:
    """Saves one checkpoint after the other.

    Args:
        slots: Where they are put together.
    """

    def __init__(self, slots: Slots | None = None) -> None:
        self.slots = slots or Slots(on_made=torch_copies.register)
        self._renew()
        in_forks(self._renew)

    def save(self, obj: object, path: str | os.PathLike[str], **options: Any) -> None:
        """Save, and return when the file is whole and in its place. See `tune_sync.torch.save`."""
        self.save_async(obj, path, **options).result()

    def save_async(
        self,
        obj: object,
        path: str | os.PathLike[str],
        *,
        overlap: bool = False,
        **options: Any,
    ) -> Future[Path]:
        """Save, and return when the copies are on their way. See `tune_sync.torch.save_async`."""
        target = placing.target_of(path)
        with self._lock:
            planned = None if placing.takes_no_file(target) else self._plan(obj, options)
            if planned is None:
                return self._start_slowly(obj, target, options, 0)
            started = self._start(planned, overlap=overlap)
            if started is None:
                return self._start_slowly(obj, target, options, planned.size_bytes)
            return self._pool.submit(self._finish, *started, target)

    def close(self) -> None:
        """Wait for what is on its way, and give the memory back."""
        self._pool.shutdown()
        self.slots.close()

    def _renew(self) -> None:
        """Have a thread: in a forked process, that of its parent is not there."""
        # One thread: saves to one path end in the order in which they were started.
        self._pool = ThreadPoolExecutor(1, "tune_sync-save")
        self._lock = threading.Lock()

    def _plan(self, obj: object, options: dict[str, Any]) -> ArchivePlan | None:
        if set(options) - {"pickle_protocol"} or not self.slots.is_there():
            return None
        protocol = options.get("pickle_protocol", torch.serialization.DEFAULT_PROTOCOL)
        try:
            planned = torch_archive.plan(obj, self.slots.folder, protocol)
            torch_copies.check(planned.records)
        except Exception as error:
            # What is wrong with the object itself is told by the slow way.
            logger.debug("saved as torch.save does it: %s", error)
            return None
        return planned

    def _start(self, planned: ArchivePlan, *, overlap: bool) -> tuple[Copies, Any] | None:
        slot = self.slots.take(planned.size_bytes)
        if slot is None:
            return None
        try:
            planned.write_into(slot.memory)
            return torch_copies.start(planned.records, slot, overlap=overlap), slot
        except BaseException as error:
            self.slots.give_back(slot)
            if isinstance(error, torch_archive.CannotPlanError):
                return None
            raise

    def _finish(self, copies: Copies, slot: Any, target: Path) -> Path:
        try:
            copies.wait()
            is_to_be_handed_over = placing.place(slot, target)
        except BaseException:
            self.slots.give_back(slot)
            raise
        if is_to_be_handed_over:
            self.slots.give_away(slot)
        else:
            self.slots.give_back(slot)
        return target

    def _start_slowly(
        self, obj: object, target: Path, options: dict[str, Any], need_bytes: int
    ) -> Future[Path]:
        self._pool.submit(lambda: None).result()  # earlier saves may be to this path
        done: Future[Path] = Future()
        try:
            if placing.takes_no_file(target):
                torch.save(obj, target, **options)
            else:
                placing.place_by(target, lambda file: _save_plainly(obj, file, options), need_bytes)
            done.set_result(target)
        except Exception as error:
            done.set_exception(error)
        return done


def _save_plainly(obj: object, file: Path, options: dict[str, Any]) -> None:
    # Into an open file: errors of the disk then come with their number.
    try:
        with file.open("xb") as opened:
            torch.save(obj, opened, **options)
    except RuntimeError as error:  # of the archive that could not be ended for the reason before
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise
