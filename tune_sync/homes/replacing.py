"""The one way to replace a small file whole."""

from __future__ import annotations

from contextlib import suppress

from tune_sync import layout
from tune_sync.homes.store import Store


def replace_file(
    store: Store, key: str, data: bytes | memoryview, *, fresh: str = "", is_durable: bool = True
) -> None:
    """Put a small file in its place: whoever reads sees the old one or the new one, whole.

    It is written beside its place, from empty, as a call that was cut off may have left a longer
    one there. Its bytes are durable before it gets its name, and its name is when this returns.
    May be called twice. An error leaves the old file, or the new one.

    Not durable, as that would cost more than it is worth, are

    * the first intent of a `place`: Ray's control loop waits for it. `record` makes durable what
      it tells of, and where it is lost seals tell recovery the same;
    * the marks of what a node has staged: its files are not durable then either. A seal names the
      boot of its host, and counts for nothing after that;
    * a heartbeat of the lease: the next one follows in seconds, and behind a disk that is busy
      with checkpoints a live run would look dead.

    Args:
        store: Where.
        key: Of the file; its parent has to be there.
        data: All of it.
        fresh: Where it is written first, in the same file system: for a file that several may
            write at once a name that nobody else takes. "": beside `key`.
        is_durable: False: it survives this process, and need not survive its host.

    Raises:
        FileNotFoundError: The parent is not there.
        StoreError, OSError: It cannot be written.
    """
    fresh = fresh or f"{key}.new"
    store.remove(fresh)  # whatever it is: a link would be followed
    try:
        store.write_at(fresh, 0, data)
        if is_durable:
            store.sync(fresh)
        store.rename(fresh, key)
    except Exception:
        with suppress(OSError):  # the next call removes it
            store.remove(fresh)
        raise
    if is_durable:
        store.sync(layout.parent(key))
