"""What is published in an experiment directory, read only."""

from __future__ import annotations

from collections.abc import Iterator

from tune_sync import layout
from tune_sync.manifest import Manifest
from tune_sync.store import Store


def recorded(store: Store, below: str = layout.MANIFESTS_DIR) -> Iterator[str]:
    """Keys of checkpoints that have a manifest, in order. Reads none of them."""
    for entry in store.list(below):
        if entry.is_dir:
            yield from recorded(store, entry.key)
        else:
            yield entry.key.removeprefix(layout.MANIFESTS_DIR + "/").removesuffix(".json")


def recorded_numbers(store: Store) -> dict[str, set[int]]:
    """Trial directory -> numbers of its published checkpoints that are there."""
    found: dict[str, set[int]] = {}
    for key in recorded(store):
        number = layout.checkpoint_number(key)
        if number is not None and store.info(key) is not None:
            found.setdefault(layout.parent(key), set()).add(number)
    return found


def is_whole(store: Store, manifest: Manifest) -> bool:
    """Whether every file of a published checkpoint is there, as long as it should be."""
    for file in manifest.files:
        found = store.info(f"{manifest.checkpoint}/{file.path}")
        if found is None or found.is_dir or found.size_bytes != file.size_bytes:
            return False
    return True
