"""Out of sight at once, gone later: no part of what is removed is seen without the rest.

A mark in the place of its manifest tells recovery to go on with what was cut off: also on a full
disk, where a move needs room too, and a checkpoint is removed in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from tune_sync import layout
from tune_sync.errors import StoreFullError
from tune_sync.homes.store import Store, remove_either

_MANIFEST, _GONE = ".json", ".gone"


def move_to_trash(store: Store, key: str, name: str) -> str:
    """Take a directory out of sight by one rename; returns where it is now.

    Args:
        store: Rooted at the experiment directory.
        key: The directory.
        name: One that was never used before.
    """
    moved = f"{layout.TRASH_DIR}/{name}"
    try:
        store.make_dir(layout.TRASH_DIR)
        store.rename(key, moved)
    except StoreFullError:  # there is none until this has gone
        if key.startswith(layout.INTERNAL_DIR + "/"):  # nobody sees it there
            remove_either(store, key)
        else:
            _remove_in_place(store, key)
    return moved


def _remove_in_place(store: Store, checkpoint: str) -> None:
    mark = gone_key(checkpoint)
    with suppress(OSError):  # it takes the manifest's entry, and no bytes: few disks are so full
        store.write_at(mark, 0, b"")
        store.sync(layout.parent(mark))
    remove_either(store, checkpoint)
    store.remove(mark)


def gone_key(checkpoint: str) -> str:
    """The mark of a checkpoint that is being removed in its place; as long as its manifest's."""
    return layout.manifest_key(checkpoint).removesuffix(_MANIFEST) + _GONE


def withdraw(store: Store, mark: str) -> tuple[bool, bool]:
    """Make a manifest the mark of its checkpoint's removal, by one rename.

    On a full disk, where that needs room too, it is removed.

    Returns:
        Whether there was a manifest; whether there is a mark, also of a removal that was cut off.
    """
    manifest = mark.removesuffix(_GONE) + _MANIFEST
    was_recorded = store.info(manifest) is not None
    try:
        if was_recorded:
            store.rename(manifest, mark)
    except StoreFullError:
        store.remove(manifest)
    return was_recorded, store.info(mark) is not None


def finish_removals(
    store: Store, fence: Callable[[], None], below: str = layout.MANIFESTS_DIR
) -> None:
    """Remove the rest of what was removed in its place when that was cut off.

    For the owner of the lease only, when all is recorded that can be: what has a manifest is a
    later checkpoint of that name.

    Args:
        store: Rooted at the experiment directory.
        fence: Raises LeaseLostError once another run has the lease.
        below: Where the marks are.
    """
    for entry in store.list(below):
        checkpoint = entry.key.removeprefix(layout.MANIFESTS_DIR + "/").removesuffix(_GONE)
        if entry.is_dir:
            finish_removals(store, fence, entry.key)
        elif entry.key.endswith(_GONE) and layout.is_checkpoint_name(checkpoint.split("/")[-1]):
            fence()  # before it is looked at: a stop may have been long, and the name used again
            if store.info(layout.manifest_key(checkpoint)) is None:
                remove_either(store, checkpoint)
            store.remove(entry.key)


def empty_trash(store: Store, only: str = "") -> None:
    """Remove what was moved there; first make sure that it does not come back in parts.

    Args:
        store: Rooted at the experiment directory.
        only: What `move_to_trash` returned: others may have put something large there, which
            whoever waits for this has no part in. "": all of it.
    """
    keys = [e.key for e in store.list(layout.TRASH_DIR) if only in ("", e.key)]
    if keys:
        store.sync(layout.TRASH_DIR)
    for key in keys:  # not the directory itself: others move things in
        remove_either(store, key)
