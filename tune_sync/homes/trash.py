"""Out of sight at once, gone later: no part of what is removed is seen without the rest."""

from __future__ import annotations

from tune_sync import layout
from tune_sync.errors import StoreFullError
from tune_sync.homes.store import Store, remove_either


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
    except StoreFullError:  # a move needs room too, and there is none until this has gone
        store.remove_tree(key)
    return moved


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
