"""Whether all that the search reported is on the driver's disk, byte for byte.

Needs neither Ray nor a running cluster: it reads files. Prints the tree, then what is wrong.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import sys
from pathlib import Path
from typing import Any

import xxhash

from examples.demo_parts.names import NAME, REPORT
from examples.demo_parts.training import digits


def main() -> int:
    root = Path.home() / "ray_results" / NAME
    report = json.loads((Path.home() / REPORT).read_text())
    print_tree(root)
    problems = problems_of(root, report)
    for problem in problems:
        print(f"NOT COMPLETE: {problem}")
    if not problems:
        count = len(manifests(root))
        print(f"complete: {count} checkpoints; sizes and digests as in their manifests, models")
        print("as they were on the hosts that trained them, nothing left over")
    return 1 if problems else 0


def print_tree(root: Path) -> None:
    """One line a trial."""
    print(f"~/ray_results/{root.name}/")
    for entry in sorted(root.iterdir(), key=lambda p: (p.is_file(), len(p.name), p.name)):
        if entry.is_file():
            print(f"  {entry.name}  ({size(entry)})")
        elif entry.name.startswith("trial_"):
            names = sorted(p.name for p in entry.glob("checkpoint_*"))
            others = sum(p.is_file() for p in entry.iterdir())
            span = f"{names[0]} … {names[-1][-2:]}" if names else "no checkpoint"
            print(f"  {entry.name}/  {span}, {others} files  ({size(entry)})")
        else:
            print(f"  {entry.name}/  ({size(entry)})")


def size(path: Path) -> str:
    files = [path] if path.is_file() else [p for p in path.rglob("*") if p.is_file()]
    return f"{sum(p.stat().st_size for p in files) / 1e6:.2f} MB"


def problems_of(root: Path, report: dict[str, Any]) -> list[str]:
    """Everything that is not as promised; empty where all is well."""
    published = manifests(root)
    on_disk = {p.relative_to(root).as_posix() for p in root.glob("trial_*/checkpoint_*")}
    problems = [
        f"{name} was reported, but is not there" for name in set(report["stored"]) - on_disk
    ]
    problems += [f"{name} has no manifest" for name in on_disk - set(published)]
    problems += [f"{name} has a manifest, but no files" for name in set(published) - on_disk]
    for name in sorted(on_disk & set(published)):
        problems += wrong_files(root / name, published[name]) or wrong_content(root / name)
    for folder in ("staging", "incoming", "trash"):
        problems += [f"left over: {p}" for p in (root / ".tune_sync" / folder).glob("*")]
    if not on_disk:
        problems.append("there is no checkpoint at all")
    return problems


def manifests(root: Path) -> dict[str, dict[str, Any]]:
    """Manifests by the checkpoint they stand for, `<trial directory>/<checkpoint>`."""
    found = (json.loads(p.read_text()) for p in (root / ".tune_sync/manifests").rglob("*.json"))
    return {manifest["checkpoint"]: manifest for manifest in found}


def wrong_files(folder: Path, manifest: dict[str, Any]) -> list[str]:
    listed = {entry["path"]: entry for entry in manifest["files"]}
    present = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    if present != set(listed):
        return [f"{folder} holds {sorted(present)}, its manifest lists {sorted(listed)}"]
    problems = []
    for path, entry in listed.items():
        data = (folder / path).read_bytes()
        if len(data) != entry["size_bytes"] or xxhash.xxh3_128_hexdigest(data) != entry["digest"]:
            problems.append(f"{folder / path} differs from its manifest")
    return problems


def wrong_content(folder: Path) -> list[str]:
    """Open a checkpoint as its user would: is it the right epoch, and does the model work?"""
    state = json.loads((folder / "state.json").read_text())
    data = (folder / "model.pkl").read_bytes()
    problems = []
    if state["epoch"] != int(folder.name.rpartition("_")[2]) + 1:
        problems.append(f"{folder} holds epoch {state['epoch']}")
    if hashlib.sha256(data).hexdigest() != state["model_sha256"]:
        problems.append(f"{folder}/model.pkl is not what {state['host']} saved")
    _, test_x, _, test_y = digits()
    if abs(pickle.loads(data).score(test_x, test_y) - state["accuracy"]) > 1e-9:
        problems.append(f"the model of {folder} is not as accurate as reported")
    return problems


if __name__ == "__main__":
    sys.exit(main())
