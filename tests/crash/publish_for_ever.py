"""A process that publishes, replaces and deletes until it is killed: `publish_for_ever.py ROOT`.

Every file of a checkpoint holds its checkpoint's number and its attempt's, so that a mix shows.
Lines on standard output say what was promised, after it was.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from pathlib import Path

import xxhash

from tune_sync.homes.commit import Committer
from tune_sync.homes.store import LocalStore
from tune_sync.layout import staged_key
from tune_sync.manifest import FileEntry, Manifest, Seal

KEEP_COUNT = 3
REPLACE_EVERY = 4


def main(root: Path) -> None:
    store = LocalStore(root)
    committer = Committer(store, "child")
    recovery = committer.recover()
    promise("recovered", list(recovery.completed))
    first = int((root / "next").read_text()) if (root / "next").exists() else 0
    for number in itertools.count(first):
        (root / "fresh").write_text(str(number + 1))  # whole or not there, whenever we are killed
        (root / "fresh").replace(root / "next")
        checkpoint = f"trial_a/checkpoint_{number:06d}"
        publish(store, committer, checkpoint, f"{number} first")
        if number % REPLACE_EVERY == 0:
            promise("replacing", checkpoint)
            publish(store, committer, checkpoint, f"{number} again")
        names = sorted(entry.key for entry in store.list("trial_a"))[-KEEP_COUNT:]
        state = committer.begin_file()
        store.write_at(state, 0, json.dumps(names).encode())
        committer.commit_file(state, "experiment_state.json", durable=True)
        promise("state", names)
        for entry in store.list("trial_a"):
            if entry.key not in names:
                promise("retiring", entry.key)
                committer.retire(entry.key)


def publish(store: LocalStore, committer: Committer, checkpoint: str, text: str) -> None:
    attempt = committer.begin(checkpoint)
    data = staged_key(checkpoint, attempt)
    files = []
    for name in ("a.bin", "sub/b.bin", "sub/c.bin"):
        content = f"{text} {name}".encode() * 2_000
        store.make_dir(f"{data}/{name}".rpartition("/")[0])
        for start in range(0, len(content), 10_000):
            store.write_at(f"{data}/{name}", start, content[start : start + 10_000])
        files.append(FileEntry(name, len(content), xxhash.xxh3_128_hexdigest(content)))
    committer.seal(checkpoint, Seal(attempt, 0, time.time(), tuple(files), ("sub",)))
    manifest: Manifest = committer.place(checkpoint).manifest
    promise("placed", checkpoint)
    committer.record(manifest)
    promise("recorded", checkpoint)


def promise(what: str, value: str | list[str]) -> None:
    print(json.dumps([what, value]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
