"""A task on another node asks the home agent for what it must not do.

Starts a run on this node with one published checkpoint, sends every hostile call from w1, and
tells the error that each one got, and whether anything of this node's disk changed.
"""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import ray

import tune_sync
from tests.bed.tree import tree_digest
from tune_sync.agents.home_agent import NAMESPACE
from tune_sync.agents.remote_home import RemoteHome
from tune_sync.homes.digests import digest_of
from tune_sync.homes.home import Piece
from tune_sync.layout import staged_key
from tune_sync.manifest import FileEntry, Seal
from tune_sync.new_run import begin_home

CHECKPOINT = "trial/checkpoint_000000"
NEXT = "trial/checkpoint_000001"
CANARY = "/tmp/canary"


class Payload:
    """Runs a command where it is unpickled."""

    def __reduce__(self) -> Any:
        return os.system, (f"touch {CANARY}",)


@ray.remote(num_cpus=0, resources={"w1": 0.01})
def attack(name: str, root: str, outside: str) -> dict[str, str]:
    agent = ray.get_actor(name, namespace=NAMESPACE)
    where, data = (root, "", 1), np.frombuffer(b"evil", dtype=np.uint8)
    attempt = ray.get(agent.call.remote(*where, "begin", NEXT))
    staged, right = f"{staged_key(NEXT, attempt)}/f", digest_of(b"evil")
    incoming = ray.get(agent.call.remote(*where, "begin_file"))

    def write(key: str, digest: str = right, root: str = root) -> Any:
        return agent.write.remote(root, "", 1, key, 0, digest, data)

    def call(verb: Any, *args: Any, root: str = root, depth: int = 1) -> Any:
        return agent.call.remote(root, "", depth, verb, *args)

    def batch(key: str) -> Any:
        return agent.write_batch.remote(*where, [Piece(key, 0, 4)], right, data)

    def read(key: str, root: str = root) -> Any:
        return agent.read.remote(root, "", 1, key, 0, 100)

    up = f"{staged_key(NEXT, attempt)}/../../../../../../{outside}"
    calls = {
        "write up": write(up),
        "write absolute": write(f"/{outside}"),
        "write NUL": write(staged + "\0x"),
        "write beside staging": write("trial/result.json"),
        "write into a checkpoint": write(f"{CHECKPOINT}/f"),
        "write the lease": write(".tune_sync/lease.json"),
        "write a seal": write(f".tune_sync/staging/{NEXT}/{attempt}/seal.json"),
        "write with a wrong digest": write(staged, "0" * 32),
        "write in no experiment": write(staged, root="/tmp"),
        "write above the experiment": write(staged, root=os.path.dirname(root)),
        "write by a root inside": write(staged, root=f"{root}/{CHECKPOINT}"),
        "write by a root of ours": write(staged, root=f"{root}/.tune_sync"),
        "write by a root with ..": write(staged, root=f"{root}/../.."),
        "write by a root with NUL": write(staged, root=f"{root}\0"),
        "batch up": batch(up),
        "batch into a checkpoint": batch(f"{CHECKPOINT}/f"),
        "read up": read("../../../../../../../etc/passwd"),
        "read absolute": read("/etc/passwd"),
        "read in no experiment": read("passwd", root="/etc"),
        "verb that is none": call("__init__", "/"),
        "verb of the class": call("__reduce__"),
        "verb of the store": call("store"),
        "verb not on the list": call("write", staged, 0, b"evil"),
        "list up": call("list", "..", True),
        "list elsewhere": call("list", "", True, root="/etc"),
        "remove up": call("remove", f"../{outside}"),
        "remove what is ours": call("remove", ".tune_sync"),
        "remove all": call("remove", ""),
        "remove in a checkpoint": call("remove", f"{CHECKPOINT}/f"),
        "make a directory up": call("make_dir", "../evil"),
        "make a directory in a checkpoint": call("make_dir", f"{CHECKPOINT}/evil"),
        "begin up": call("begin", "../checkpoint_000009"),
        "begin elsewhere": call("begin", "trial"),
        "link a secret": call("link", "/etc/passwd", staged + "2"),
        "link into a checkpoint": call("link", staged, f"{CHECKPOINT}/evil"),
        "commit up": call("commit_file", incoming, f"../{outside}", True),
        "commit into a checkpoint": call("commit_file", incoming, f"{CHECKPOINT}/f", True),
        "commit with a false depth": call(
            "commit_file", incoming, f"{CHECKPOINT}/f", True, depth=9
        ),
        "commit a lease": call("commit_file", incoming, ".tune_sync/lease.json", True),
        "commit a checkpoint's file away": call("commit_file", f"{CHECKPOINT}/f", "trial/f", True),
        "discard up": call("discard_attempt", NEXT, "../../.."),
        "seal names up": call("seal", NEXT, Seal(attempt, 0, 1.0, (FileEntry("../f", 4, right),))),
        "seal directories up": call("seal", NEXT, Seal(attempt, 0, 1.0, (), ("/evil",))),
        "seal what is not there": call(
            "seal", NEXT, Seal(attempt, 0, 1.0, (FileEntry("x", 4, ""),))
        ),
        "publish what is not sealed": call("publish", NEXT, False, [attempt]),
    }
    return {what: error_of(ref) for what, ref in calls.items()}


def error_of(ref: Any) -> str:
    try:
        ray.get(ref, timeout=30)
    except ray.exceptions.RayTaskError as error:
        return type(error.cause).__name__
    return "none"


@ray.remote(num_cpus=0, resources={"w1": 0.01})
def send(name: str, root: str) -> str:
    """An honest checkpoint; returns its attempt."""
    home = RemoteHome(name, root, "", 1, 30.0)
    attempt = home.begin(CHECKPOINT)
    home.write(f"{staged_key(CHECKPOINT, attempt)}/f", 0, b"good")
    home.flush(staged_key(CHECKPOINT, attempt))
    home.seal(CHECKPOINT, Seal(attempt, 0, 1.0, (FileEntry("f", 4, digest_of(b"good")),)))
    home.publish(CHECKPOINT, False, [attempt])
    return attempt


@ray.remote(num_cpus=0, resources={"w1": 0.01})
def publish(name: str, root: str, checkpoint: str, attempt: str) -> str:
    agent = ray.get_actor(name, namespace=NAMESPACE)
    return error_of(agent.call.remote(root, "", 1, "publish", checkpoint, False, [attempt]))


def publish_with_seal(name: str, root: Path, number: int, seal: bytes) -> str:
    """The error of a publish of what has this for its seal."""
    checkpoint, attempt = f"trial/checkpoint_00001{number}", f"{number:032x}"
    directory = root / ".tune_sync/staging" / checkpoint / attempt
    (directory / "data").mkdir(parents=True)
    (directory / "seal.json").write_bytes(seal)
    error: str = ray.get(publish.remote(name, str(root), checkpoint, attempt))
    assert not (root / checkpoint).exists()
    return error


def changed(root: Path, before: dict[str, Any]) -> list[str]:
    """What is visible in HOME and has changed, or came."""
    after = {k: v for k, v in tree_digest(Path.home()).items() if ".tune_sync/staging" not in k}
    return sorted(
        k for k in {*before, *after} if before.get(k) != after.get(k) and "incoming" not in k
    )


def main() -> None:
    ray.init()
    config = tune_sync.RunConfig(name="target")
    handler = config.storage_filesystem.handler
    handler.start()
    begin_home(handler)
    root, name = Path(handler.experiment_root), handler.spec.address.agent_name
    ray.get(send.remote(name, str(root)))
    outside = Path.home() / "outside"
    outside.write_text("safe")
    before = {k: v for k, v in tree_digest(Path.home()).items() if ".tune_sync/staging" not in k}
    errors = ray.get(attack.remote(name, str(root), str(outside).lstrip("/")))
    body = {"format_version": 1, "digest_algorithm": "xxh3_128", "attempt": f"{1:032x}", "rank": 0,
            "sealed_s": 1.0, "files": [], "directories": []}  # fmt: skip
    seals = [
        pickle.dumps(Payload()),
        json.dumps({**body, "directories": ["../evil"]}).encode(),
        json.dumps({**body, "files": [{"path": "/x", "size_bytes": 0, "digest": ""}]}).encode(),
        json.dumps({**body, "attempt": "../../.."}).encode(),
        json.dumps({**body, "format_version": 99}).encode(),
        b"\xff\xfe garbage",
    ]
    told = {
        "errors": errors,
        "seals": [publish_with_seal(name, root, n, seal) for n, seal in enumerate(seals)],
        "changed": [k for k in changed(root, before) if "lease.json" not in k],
        "canary": os.path.exists(CANARY),
        "outside": outside.read_text(),
        "good": (root / CHECKPOINT / "f").read_text(),
    }
    handler.run.close()
    print("RESULT", json.dumps(told))


if __name__ == "__main__":
    main()
