"""Wrong orders of writes, kept to show that the crash loop sees them.

`Without` leaves out one sync; the classes do steps in another order.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from tests.crash.run import Run
from tune_sync import layout
from tune_sync.homes import commit
from tune_sync.homes.commit import Committer
from tune_sync.homes.recorded import first_wrong
from tune_sync.homes.trash import empty_trash
from tune_sync.layout import manifest_key, staged_key
from tune_sync.manifest import Manifest, Placed, Union, to_json, unite
from tune_sync.testing.fault_store import FaultStore


@dataclass(frozen=True)
class Without:
    """A committer that leaves out one call: `verb`, made by the last of `callers`.

    Attributes:
        callers: "outer inner": functions of `commit`, as they call each other.
        verb: The verb of the store that is left out there.
        below: Only for keys that begin so.
    """

    callers: str
    verb: str = "sync"
    below: str = ""

    def __call__(self, store: Any, *args: Any, **kwargs: Any) -> Committer:
        """Make the committer."""
        return Committer(_Forgetful(store, self), *args, **kwargs)


class _Forgetful(FaultStore):
    def __init__(self, base: Any, without: Without) -> None:
        super().__init__(base)
        self._without = without

    def sync(self, key: str) -> None:
        if not self._left_out("sync", key):
            self.base.sync(key)

    def sync_tree(self, key: str) -> None:
        if not self._left_out("sync_tree", key):
            self.base.sync_tree(key)

    def _left_out(self, verb: str, key: str) -> bool:
        callers, is_below = self._without.callers.split(), key.startswith(self._without.below)
        return verb == self._without.verb and is_below and _callers()[-len(callers) :] == callers


def _callers() -> list[str]:
    names = []
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_filename == commit.__file__:
            names.append(frame.f_code.co_name)
    return names[::-1]


class ManifestBeforeRename(Committer):
    """Says that a checkpoint is published, then puts it there."""

    def _move_into_place(self, intent: str, checkpoint: str) -> None:
        self._replace(manifest_key(checkpoint), self.store.read(intent))
        super()._move_into_place(intent, checkpoint)


class ManifestBeforeSync(Committer):
    """The manifest is durable before the checkpoint's own entry."""

    def record(self, manifest: Manifest) -> None:
        key = manifest_key(manifest.checkpoint)
        self._replace(key, to_json(manifest))
        self._sync_above(key)
        super().record(manifest)


class WritesOverTheIntent(Committer):
    """What an earlier call has written of the intent stays behind a shorter one."""

    def _write_intent(self, intent: str, manifest: Manifest) -> None:
        self.store.write_at(intent, 0, to_json(manifest))


class FileByFile(Committer):
    """Moves files one by one into the place where readers look."""

    def _move_into_place(self, intent: str, checkpoint: str) -> None:
        data = intent.removesuffix("manifest.json") + "data"
        self._set_aside(checkpoint)
        self.store.make_dir(checkpoint)
        for entry in self.store.list(data):
            self.store.rename(entry.key, f"{checkpoint}/{entry.key.rpartition('/')[2]}")
        self.store.remove_tree(data)


class RemovesInPlace(Committer):
    """Deletes the bytes where readers look."""

    def retire(self, checkpoint: str) -> None:
        self.store.remove_tree(checkpoint)
        super().retire(checkpoint)


class KeepsOldManifest(Committer):
    """Replaces a checkpoint under the manifest of the old one."""

    def _set_aside(self, checkpoint: str) -> None:
        if self.store.info(checkpoint) is not None:
            self.store.make_dir(layout.TRASH_DIR)
            self.store.rename(checkpoint, f"{layout.TRASH_DIR}/{self._new_id()}")


class PlacesWithoutIntent(Committer):
    """Leaves no trace from which recovery could go on."""

    def place(
        self, checkpoint: str, *, strict: bool = False, attempts: Collection[str] | None = None
    ) -> Placed:
        union = unite(checkpoint, self._seals(checkpoint), strict=strict)
        self._gather(checkpoint, union)
        manifest = Manifest(checkpoint, self._owner, self._clock(), union.files, union.directories)
        self._set_aside(checkpoint)
        self.store.make_dir(checkpoint.rpartition("/")[0])
        self.store.rename(staged_key(checkpoint, union.seals[0].attempt), checkpoint)
        return Placed(manifest, union.conflicts)


class KeepsEarlierIntents(Committer):
    """Leaves the intents of earlier attempts, which recovery may take for the newest."""

    def _drop_intents(self, checkpoint: str, keep: str = "") -> None:
        pass


class RemovesOldFirst(Committer):
    """Makes room for a replacement by deleting what is there, before the intent is durable."""

    def place(
        self, checkpoint: str, *, strict: bool = False, attempts: Collection[str] | None = None
    ) -> Placed:
        self._set_aside(checkpoint)
        empty_trash(self.store)
        return super().place(checkpoint, strict=strict, attempts=attempts)


class TakesAnySealForWhole(Committer):
    """Recovery publishes whatever is sealed, be it one rank of two."""

    def _finish_place(self, checkpoint: str) -> Manifest | None:
        seals = self._seals(checkpoint)
        if not seals or self.store.info(checkpoint) is not None:
            return super()._finish_place(checkpoint)
        return self.place(checkpoint).manifest


class DropsAllStaged(Committer):
    """Recovery takes all that is staged for rubbish."""

    def _finish_place(self, checkpoint: str) -> Manifest | None:
        return None


class CountsOnIntents(Committer):
    """Recovery takes what is visible for nothing if its intent is lost."""

    def _visible_union(self, checkpoint: str) -> Union | None:
        return None


class LooksAtLengthsOnly(Committer):
    """Recovery takes what is visible for what has the same names and lengths."""

    def _is_visible(self, checkpoint: str, union: Union) -> bool:
        return not first_wrong(self.store, checkpoint, union.files)


class WaitsForTheDriver(Committer):
    """Recovery leaves out what agents sent behind a dead driver."""

    def _place_late(self, checkpoint: str, after: str, strict: bool) -> Manifest | None:
        return None


class WritesIntoOneAttempt(Committer):
    """A retry goes on in the directory of the attempt before."""

    def begin(self, checkpoint: str) -> str:
        self.store.make_dir(staged_key(checkpoint, "only"))
        return "only"


class StateBeforeRecord(Run):
    """Names a checkpoint in the state before it is durable."""

    def publish(self, checkpoint: str, contents: dict[str, bytes | None]) -> None:
        self.stage(checkpoint, contents)
        self.place(checkpoint, contents)
        named = self.ledger.states[-1] if self.ledger.states else ()
        self.state(*named, checkpoint)
        self.record(checkpoint)


class RetireBeforeState(Run):
    """Deletes a checkpoint that the state on disk still names."""

    def state(self, *names: str) -> None:
        for gone in set(self.ledger.states[-1] if self.ledger.states else ()) - set(names):
            self.retire(gone)
        super().state(*names)


Wrong = Callable[..., Any]
