"""What has to hold after any crash, stated once.

Right after a crash, for a reader that knows nothing of ours (`check_at_once`), and after recovery
(`check_recovered`):

* WHOLE      A checkpoint directory that is visible is whole: all files and directories of exactly
             one attempt that was handed over to be placed, with its bytes, and nothing else.
* MANIFEST   A checkpoint with a manifest holds exactly the files it lists, with their digests.
* STATE      The state file can be read, is no older than the last one reported as written, and
             names only checkpoints that are there whole.

After recovery also:

* RECORDED   What `record` returned for is there and published, unless it is being retired. While
             it is being replaced, the old or the new one is.
* PLACED     After the death of a process (no power cut), what `place` returned for is there and
             published.
* COUNTS     What is visible is published, also after a power cut, unless it is being retired.
* ACKNOWLEDGED  What was sent behind a driver that is dead, and that it had taken, is published,
             also after a power cut.
* RETIRED    What `retire` returned for does not come back.
* CLEAN      Nothing is left of attempts, single files and deletes, no manifest lacks its
             checkpoint, and recovering once more changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import xxhash

from tests.crash.ledger import Contents, Ledger
from tests.manifests import manifests_of
from tune_sync import layout
from tune_sync.errors import DamagedError
from tune_sync.homes.commit import Committer
from tune_sync.homes.store import Store

STATE_KEY = "experiment_state.json"


class ViolatedError(AssertionError):
    """An invariant does not hold; the message begins with its name."""


def check_at_once(store: Store, ledger: Ledger) -> None:
    """WHOLE, MANIFEST and STATE: hold at every instant."""
    visible = dict(visible_checkpoints(store))
    for checkpoint, found in visible.items():
        _demand("WHOLE", found in ledger.wholes.get(checkpoint, []), f"{checkpoint}: {found}")
    _check_manifests(store, visible)
    _check_state(store, ledger, visible)


def check_recovered(store: Store, ledger: Ledger, *, process_only: bool) -> None:
    """All of them. `process_only`: there was no power cut."""
    check_at_once(store, ledger)
    visible = dict(visible_checkpoints(store))
    published = {manifest.checkpoint for manifest in manifests_of(Committer(store))}
    for checkpoint, whole in ledger.recorded.items():
        if checkpoint in ledger.retiring:
            continue
        _demand("RECORDED", checkpoint in published, f"{checkpoint} is not published")
        found = visible.get(checkpoint)
        replaced = checkpoint in ledger.replacing
        _demand("RECORDED", found == whole or replaced, f"{checkpoint}: {found}")
    for checkpoint, whole in ledger.placed.items():
        if process_only and checkpoint not in ledger.retiring:
            _demand("PLACED", checkpoint in published, f"{checkpoint} is not published")
            newer = _begun_after(ledger.wholes[checkpoint], whole)
            _demand("PLACED", visible.get(checkpoint) in [whole, *newer], checkpoint)
    for checkpoint in visible.keys() - ledger.retiring:
        _demand("COUNTS", checkpoint in published, f"{checkpoint} is visible and not published")
    for checkpoint in ledger.acknowledged:
        _demand("ACKNOWLEDGED", checkpoint in published, checkpoint)
    for checkpoint in ledger.retired:
        _demand("RETIRED", checkpoint not in visible, checkpoint)
    check_clean(store)


def check_clean(store: Store) -> None:
    """CLEAN, without the second recovery."""
    for directory in (layout.STAGING_DIR, layout.INCOMING_DIR, layout.TRASH_DIR):
        _demand("CLEAN", store.info(directory) is None, directory)
    for key in tree(store, layout.MANIFESTS_DIR):
        if key.endswith(".json"):
            checkpoint = key.removesuffix(".json")
            _demand("CLEAN", store.info(checkpoint) is not None, f"manifest of absent {checkpoint}")


def check_stable(store: Store) -> None:
    """CLEAN: recovering once more changes nothing."""
    before = tree(store, "")
    recovery = Committer(store).recover()
    _demand("CLEAN", not recovery.completed and not recovery.dropped, repr(recovery))
    _demand("CLEAN", tree(store, "") == before, "a second recovery changed the store")


def visible_checkpoints(store: Store) -> Iterator[tuple[str, Contents]]:
    """Checkpoint directories as a reader finds them who knows only Ray's layout."""
    for trial in store.list(""):
        if trial.is_dir and trial.key != layout.INTERNAL_DIR:
            for entry in store.list(trial.key):
                if layout.is_checkpoint_name(entry.key.rpartition("/")[2]):
                    yield entry.key, tree(store, entry.key)


def tree(store: Store, top: str) -> Contents:
    """All that is below a directory."""
    found: Contents = {}
    prefix = f"{top}/" if top else ""
    for entry in store.list(top):
        name = entry.key.removeprefix(prefix)
        found[name] = None if entry.is_dir else store.read(entry.key)
        if entry.is_dir:
            below = tree(store, entry.key)
            found.update({f"{name}/{path}": data for path, data in below.items()})
    return found


def _check_manifests(store: Store, visible: dict[str, Contents]) -> None:
    try:
        manifests = manifests_of(Committer(store))
    except DamagedError as error:
        raise ViolatedError(f"MANIFEST: {error}") from error
    for manifest in manifests:
        found = visible.get(manifest.checkpoint, {})
        names = {file.path for file in manifest.files} | set(manifest.directories)
        _demand("MANIFEST", set(found) == names, f"{manifest.checkpoint}: {set(found) ^ names}")
        for file in manifest.files:
            data = found[file.path] or b""
            same = len(data) == file.size_bytes and xxhash.xxh3_128_hexdigest(data) == file.digest
            _demand("MANIFEST", same, f"{manifest.checkpoint}/{file.path}: {data!r}")


def _check_state(store: Store, ledger: Ledger, visible: dict[str, Contents]) -> None:
    if store.info(STATE_KEY) is None:
        _demand("STATE", ledger.states_done == 0, "the state file is lost")
        return
    raw = store.read(STATE_KEY)
    try:
        state = json.loads(raw)
    except ValueError:
        raise ViolatedError(f"STATE: cannot be read: {raw!r}") from None
    _demand("STATE", state["number"] >= ledger.states_done - 1, "an older state came back")
    for checkpoint in state["checkpoints"]:
        _demand("STATE", checkpoint in visible, f"names absent {checkpoint}")


def _begun_after(wholes: list[Contents], whole: Contents) -> list[Contents]:
    return wholes[len(wholes) - wholes[::-1].index(whole) :]


def _demand(name: str, holds: bool, what: str) -> None:
    if not holds:
        raise ViolatedError(f"{name}: {what}")
