"""An experiment directory that all nodes see: what one of them did may take a while to be seen.

`LocalHome`, but nothing that must be there is taken for missing by one look. Waits are bounded by
`disk.VISIBLE_WITHIN_S`; only what another node wrote is waited for.
"""

from __future__ import annotations

import builtins
import json
import logging
import posixpath
from collections.abc import Collection, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from tune_sync import layout
from tune_sync.errors import (
    DamagedError,
    LeaseLostError,
    NotSharedError,
    NotWholeError,
    StoreError,
)
from tune_sync.homes import disk
from tune_sync.homes.commit import Committer
from tune_sync.homes.home import LocalHome
from tune_sync.homes.lease import check_owner, read_holder
from tune_sync.homes.recorded import recorded
from tune_sync.homes.replacing import replace_file
from tune_sync.homes.store import Info, LocalStore
from tune_sync.layout import Kind
from tune_sync.manifest import FORMAT_VERSION, FileEntry, Manifest, Placed, Union, manifest_of
from tune_sync.same import is_same_inode

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver


# What names another directory, for messages.
SETTING = "upload_dir, or storage_path"


class SharedStore(LocalStore):
    """A directory that other nodes change too. See `store.Store`."""

    @disk.reopened
    def info(self, key: str) -> Info | None:
        """See `Store.info`; not from a cache if it is not there."""
        found = super().info(key)
        if found is None and key:
            disk.refresh(self.path(key))
            found = super().info(key)
        return found

    def make_dir(self, key: str) -> None:
        """See `Store.make_dir`; another node may have made it, and it is not seen here yet."""
        if not disk.wait_until(partial(self._is_made, key), disk.VISIBLE_WITHIN_S):
            super().make_dir(key)

    def _is_made(self, key: str) -> bool:
        try:
            super().make_dir(key)
        except (FileExistsError, FileNotFoundError):
            return False
        return True

    def _sync_file_system(self, path: Path) -> bool:
        """Never: FUSE does not pass syncfs() on to what is behind it."""
        return False


class SharedCommitter(Committer):
    """A `Committer` that waits until it sees what the writers on other nodes have reported."""

    def place(
        self, checkpoint: str, *, strict: bool = False, attempts: Collection[str] | None = None,
        metrics: dict[str, Any] | None = None,
    ) -> Placed:  # fmt: skip
        """See `Committer.place`. Sealed attempts that were reported are waited for."""
        if attempts is not None:
            sees = partial(self._sees, checkpoint, attempts)
            if not disk.wait_until(sees, disk.VISIBLE_WITHIN_S):
                self._note_reported(checkpoint, attempts)
        return super().place(checkpoint, strict=strict, attempts=attempts, metrics=metrics)

    def _note_reported(self, checkpoint: str, attempts: Collection[str]) -> None:
        """Write down what was reported: a restore takes it if all of it is seen by then.

        In a directory that nobody else makes: what others have made may not be seen here yet.
        """
        self._fence()
        key = layout.reported_key(checkpoint)
        body = {"format_version": FORMAT_VERSION, "parts": sorted(attempts)}
        try:
            self.store.make_dir(layout.parent(key))
            replace_file(self.store, key, json.dumps(body).encode())
        except (StoreError, OSError) as error:  # `place` says what is missing
            logger.warning("cannot note what %s is made of: %s", checkpoint, error)

    def _sees(self, checkpoint: str, attempts: Collection[str]) -> bool:
        return all(self._sees_attempt(checkpoint, attempt) for attempt in attempts)

    def _sees_attempt(self, checkpoint: str, attempt: str) -> bool:
        """Its seal, and its bytes, which one name being seen does not say of the other."""
        seal, data = layout.seal_key(checkpoint, attempt), layout.staged_key(checkpoint, attempt)
        placed = layout.intent_key(checkpoint, attempt)
        return self._sees_any(seal) and self._sees_any(data, placed)

    def _sees_any(self, *keys: str) -> bool:
        return any(self.store.info(key) is not None for key in keys)

    def _gather(self, checkpoint: str, union: Union) -> None:
        whole = layout.staged_key(checkpoint, union.seals[0].attempt)
        for attempt, path in union.moves:  # what is not there has been moved by an earlier call
            staged = f"{layout.staged_key(checkpoint, attempt)}/{path}"
            is_seen = partial(self._sees_any, staged, f"{whole}/{path}")
            disk.wait_until(is_seen, disk.VISIBLE_WITHIN_S)
        super()._gather(checkpoint, union)

    def _check_lengths(self, directory: str, files: Iterable[FileEntry]) -> None:
        for file in files:
            has = partial(self._has_length, f"{directory}/{file.path}", file.size_bytes)
            disk.wait_until(has, disk.VISIBLE_WITHIN_S)
        super()._check_lengths(directory, files)

    def _place_late(self, checkpoint: str, after: str, strict: bool) -> Manifest | None:
        if self.store.info(layout.reported_key(checkpoint)) is not None:
            seen = partial(self._sees_reported, checkpoint, after)
            disk.wait_until(seen, disk.VISIBLE_WITHIN_S)
        return super()._place_late(checkpoint, after, strict)

    def _sees_reported(self, checkpoint: str, after: str) -> bool:
        return not self._may_be_whole_later(checkpoint, after)

    def _drop_orphaned_manifests(self) -> tuple[str, ...]:
        disk.wait_until(self._sees_all_recorded, disk.VISIBLE_WITHIN_S)
        return super()._drop_orphaned_manifests()

    def _sees_all_recorded(self) -> bool:
        return all(self.store.info(checkpoint) is not None for checkpoint in recorded(self.store))

    def _has_length(self, key: str, size_bytes: int) -> bool:
        found = self.store.info(key)
        return found is not None and found.size_bytes == size_bytes


class SharedHome(LocalHome):
    """See `Home`.

    Args:
        root: The experiment directory, the same on all nodes.
        owner: See `LocalHome`.
        checkpoint_depth: See `LocalHome`.
        where: Names this node for messages; "" on the driver, which waits for no checkpoint: it
            has placed them all itself.
        leased_root: See `LocalHome`.
    """

    def __init__(
        self, root: Path, owner: str = "", checkpoint_depth: int = 1, where: str = "",
        leased_root: Path | None = None,
    ) -> None:  # fmt: skip
        super().__init__(root, owner, checkpoint_depth, leased_root)
        self.store = SharedStore(root)
        self.store.setting = SETTING
        self.committer = SharedCommitter(self.store, owner, self._fence)
        self._where = where
        self._patience_s = disk.VISIBLE_WITHIN_S if where else 0.0
        self._whole: set[str] = set()

    def check_here(self) -> None:
        """Raise NotSharedError if this node does not see the experiment directory."""
        ours = self.root / layout.INTERNAL_DIR
        if not disk.wait_until(ours.is_dir, self._patience_s):
            raise self._not_shared(ours)

    def info(self, key: str) -> Info | None:
        """See `Home.info`. A checkpoint, and Ray's marker, is there if Ray asks for it."""
        is_marker = posixpath.basename(key) == layout.MARKER
        if is_marker or (key and self._checkpoint(key) == key):
            seen = disk.wait_until(lambda: self.store.info(key) is not None, self._patience_s)
            if is_marker and self._where and not seen:
                raise self._not_shared(self.root / key)
        return self.store.info(key)

    def list(self, key: str, recursive: bool) -> list[Info]:
        """See `Home.list`. Of a checkpoint all of it, or an error."""
        checkpoint = self._checkpoint(key)
        unsure = self._where and checkpoint and checkpoint not in self._whole
        if unsure and self.store.info(layout.INTERNAL_DIR) is not None:  # else it is a plain copy
            self._await_whole(checkpoint)
        return super().list(key, recursive)

    def is_working_directory(self, trial: str) -> bool:
        """Whether this process works in that trial's own directory, as of `root`.

        Then what it writes is in its place already: to copy it would replace open files.
        """
        try:
            here = Path.cwd()
        except FileNotFoundError:  # it was removed
            return False
        if is_same_inode(here, self.root / trial):
            return True
        holder = read_holder(here.parent / layout.LEASE_KEY) if here.name == trial else None
        return holder is not None and holder.owner == self._owner

    def _fence(self) -> None:
        if not self._owner or disk.wait_until(self._is_owner, self._patience_s):
            return
        if self._where and not (self._leased_root / layout.INTERNAL_DIR).is_dir():
            raise self._not_shared(self._leased_root / layout.LEASE_KEY)
        check_owner(self._leased_root, self._owner)

    def _is_owner(self) -> bool:
        try:
            check_owner(self._leased_root, self._owner)
        except LeaseLostError:
            disk.refresh(self._leased_root / layout.LEASE_KEY)
            return False
        return True

    def _checkpoint(self, key: str) -> str:
        place = layout.classify(key, checkpoint_depth=self._depth)
        return place.checkpoint if place.kind is Kind.CHECKPOINT else ""

    def _await_whole(self, checkpoint: str) -> None:
        missing = ["its manifest"]

        def is_whole() -> bool:
            manifest = self._manifest(checkpoint)
            if manifest is not None:
                missing[:] = self._missing(manifest)
            return manifest is not None and not missing

        if not disk.wait_until(is_whole, self._patience_s):
            raise NotWholeError(
                f"{self.root / checkpoint} is not all there on {self._where}: {missing[0]} does "
                f"not appear within {self._patience_s:.0f} s; look at how the directory is mounted "
                "there, or use an older checkpoint"
            )
        self._whole.add(checkpoint)

    def _manifest(self, checkpoint: str) -> Manifest | None:
        """What the driver has taken the checkpoint for, be it recorded or only placed."""
        attempts = self.store.list(f"{layout.STAGING_DIR}/{checkpoint}")
        intents = [f"{attempt.key}/{layout.INTENT}" for attempt in attempts]
        for key in (layout.manifest_key(checkpoint), *intents):
            try:
                return manifest_of(checkpoint, self.store.read(key), key)
            except (FileNotFoundError, DamagedError):  # a part of it may be seen already
                disk.refresh(self.store.path(key))
        return None

    def _missing(self, manifest: Manifest) -> builtins.list[str]:
        found = []
        for file in manifest.files:
            info = self.store.info(f"{manifest.checkpoint}/{file.path}")
            if info is None or info.size_bytes != file.size_bytes:
                found.append(file.path)
        for directory in manifest.directories:
            if self.store.info(f"{manifest.checkpoint}/{directory}") is None:
                found.append(directory)
        return found

    def _not_shared(self, path: Path) -> NotSharedError:
        return NotSharedError(
            f"{path} is not visible on {self._where}: the storage path {self.root.parent} has to "
            "be the same directory on all nodes; mount it there, or use "
            'tune_sync.SyncConfig(syncer="auto"), which needs no shared storage'
        )
