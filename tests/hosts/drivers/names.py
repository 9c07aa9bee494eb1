"""One trial on a worker whose files, directories, experiment and trial have odd names, and links.

Reports ODD names through Ray's own class and through ours, then links, and prints the trees that
the worker saw beside those at home.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
from pathlib import Path
from typing import Any

import ray
from ray import tune

import tune_sync
from tests.bed.tree import tree_digest
from tune_sync import RunConfig, SyncConfig

ODD = (
    "a b", "a%20b", "a+b", "a#b", "a?b", "a&b", "a;b", "a'b", 'a"b', "ä", "漢字", "~x", "~", "{y}",
    ".dot", "..dots", "blank ", " blank", "new\nline", "back\\slash", "*", "[z]", "$HOME", "a:b",
    "x" * 200,
)  # fmt: skip
EXPERIMENT = "ä %20 #?&;'~{y} 漢"
TRIAL = "träil a%20b #1;'~{y} 漢"  # Ray itself replaces "?" in it
LINKED_BYTES = 16 << 20


def write_odd(root: Path) -> None:
    for number, name in enumerate(ODD):
        (root / name).write_text(f"file {number}")
        inside = root / "dirs" / name / name
        inside.mkdir(parents=True)
        (inside / name).write_text(f"below {number}")
    (root / "empty" / "a b").mkdir(parents=True)


def write_links(root: Path) -> None:
    (root / "real").mkdir()
    (root / "real" / "f").write_bytes(os.urandom(4096))
    (root / "to_file").symlink_to("real/f")
    (root / "to_dir").symlink_to("real")
    (root / "absolute").symlink_to(root / "real" / "f")
    (root / "h1").write_bytes(os.urandom(LINKED_BYTES))
    for number in (2, 3, 4):
        (root / f"h{number}").hardlink_to(root / "h1")
    (root / "small1").write_bytes(b"small")
    (root / "small2").hardlink_to(root / "small1")


def sent_bytes() -> int:
    """Sent by this host so far, on all its network devices but the loop."""
    lines = Path("/proc/self/net/dev").read_text().splitlines()[2:]
    devices = dict(line.split(":") for line in lines)
    return sum(int(v.split()[8]) for k, v in devices.items() if k.strip() != "lo")


def report(kind: Any, write: Any) -> None:
    with tempfile.TemporaryDirectory() as directory:
        write(Path(directory))
        seen = {path: list(entry) for path, entry in tree_digest(directory).items()}
        before = sent_bytes()
        metrics = {"seen": json.dumps(seen), "node": socket.gethostname(), "sent_bytes": 0}
        tune.report({**metrics}, checkpoint=kind.from_directory(directory))
        tune.report({**metrics, "seen": "", "sent_bytes": sent_bytes() - before})


def trial(config: dict[str, Any]) -> None:
    work = Path.cwd() / "out"  # the trial's directory on this node
    work.mkdir()
    write_odd(work)
    report(tune.Checkpoint, write_odd)
    report(tune_sync.Checkpoint, write_odd)
    report(tune_sync.Checkpoint, write_links)


class Keep(tune.Callback):  # type: ignore[misc]
    """Keeps every result."""

    def __init__(self) -> None:
        self.results: list[dict[str, Any]] = []

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        self.results.append(result)


def main() -> None:
    ray.init(log_to_driver=False)
    keep = Keep()
    results = tune.Tuner(
        tune.with_resources(trial, {"cpu": 1, "w1": 1}),
        tune_config=tune.TuneConfig(trial_dirname_creator=lambda trial: TRIAL),
        run_config=RunConfig(
            name=EXPERIMENT, callbacks=[keep], verbose=0,
            sync_config=SyncConfig(sync_artifacts=True),
        ),
    ).fit()  # fmt: skip
    root = Path(results[0].path)
    homes = sorted(root.glob("checkpoint_*"))
    opened = []
    for result in results:
        for checkpoint, _ in result.best_checkpoints:
            copy = tune_sync.fetch(checkpoint, f"/tmp/{Path(checkpoint.path).name}")
            opened.append(tree_digest(copy) == tree_digest(checkpoint.path))
    print(
        "RESULT",
        json.dumps(
            {
                "root": str(root),
                "errors": [str(error) for error in results.errors],
                "nodes": sorted({r["node"] for r in keep.results}),
                "seen": [json.loads(r["seen"]) for r in keep.results if r["seen"]],
                "sent_bytes": [r["sent_bytes"] for r in keep.results if r["sent_bytes"]],
                "at_home": [tree_digest(home) for home in homes],
                "artifacts": tree_digest(root / "out") if (root / "out").is_dir() else {},
                "inodes": [
                    os.stat(homes[-1] / name).st_ino
                    for name in ("h1", "h2", "h3", "h4", "small1", "small2")
                ],
                "opened": opened,
            }
        ),
    )


if __name__ == "__main__":
    main()
