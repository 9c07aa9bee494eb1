"""Knocks on the door of a live run, and asks agents of its nodes what they must not do.

`WHERE CHECKPOINT`: of the run, and one that is published. The door and the agent are those of the
head's host. Prints what came of each try: the name of an error, or what was answered.
"""

from __future__ import annotations

import json
import os
import pickle
import socket
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from typing import Any

import numpy as np
import ray

from tests.hosts.drivers.hostile import Payload
from tune_sync.agents.home_agent import NAMESPACE
from tune_sync.agents.names import names_of, node_of
from tune_sync.behind.replica_door import Entrance
from tune_sync.behind.replica_lane import TransportLane
from tune_sync.behind.replica_message import Message
from tune_sync.fastpath.transports import TcpTransport
from tune_sync.homes.digests import digest_of
from tune_sync.layout import staged_key
from tune_sync.manifest import FileEntry, Seal

WAIT_S = 30.0
ATTEMPT, OURS = "e" * 32, "stranger/checkpoint_000000"
STAGED, EVIL = staged_key(OURS, ATTEMPT), b"evil"
UP = "../../../../../../../.."
RIGHT = digest_of(EVIL)


HOSTILE_KEYS = {
    "up": f"{STAGED}/{UP}/tmp/evil",
    "to an absolute path": "/tmp/evil",
    "into a checkpoint": f"{OURS}/evil",
    "of what has not begun": f"{staged_key(OURS, 'd' * 32)}/evil",
    "a seal": f"{STAGED}/../seal.json",
    "the lease": ".tune_sync/lease.json",
    "a name with NUL": f"{STAGED}/evil\0",
}


def told(ask: Callable[[], Any]) -> str:
    """What came of it, in a word."""
    try:
        return repr(ask())
    except ray.exceptions.RayTaskError as error:
        return type(error.cause).__name__
    except Exception as error:
        return type(error).__name__


def knock(address: str, said: bytes) -> int:
    """How many bytes a stranger hears who says something, until the door is closed."""
    host, _, port = address.rpartition(":")
    heard = 0
    with socket.create_connection((host, int(port)), WAIT_S) as connection:
        connection.settimeout(WAIT_S)
        with suppress(ConnectionError):
            connection.sendall(said)
            connection.shutdown(socket.SHUT_WR)
            while data := connection.recv(1 << 16):
                heard += len(data)
    return heard


def knocks(entrance: Entrance) -> dict[str, str]:
    """Of one who does not know the token."""
    says = {
        "nothing": b"",
        "noise": os.urandom(1 << 16),
        "pickle": pickle.dumps(Payload()),
        "a length without end": b"\xff" * 64,
        "HTTP": b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nevil",
    }
    door = entrance.address
    found = {f"says {what}": told(partial(knock, door, said)) for what, said in says.items()}
    other = TcpTransport(b"x" * len(entrance.token))
    return {**found, "has another token": told(partial(other.connect, door))}


def through_the_door(agent: Any, entrance: Entrance) -> dict[str, str]:
    """Of one who knows it: what came is told when it is flushed."""

    def flush(attempt: str, transport: str) -> Any:
        return ray.get(agent.flush_replica.remote(attempt, transport), timeout=WAIT_S)

    def send(key: str) -> Any:
        lane.send(ATTEMPT, Message.of_chunk(key, 0, len(EVIL)), EVIL)
        return lane.flush(ATTEMPT)

    transport = TcpTransport(entrance.token)
    lane = TransportLane(transport, entrance.address, flush, None, WAIT_S)
    with closing(lane):
        return {f"sends {what}": told(partial(send, key)) for what, key in HOSTILE_KEYS.items()}


def calls(agent: Any, published: str) -> dict[str, str]:
    """Of one who may call the agent."""
    data = np.frombuffer(EVIL, dtype=np.uint8)
    outside = f"{published}/{UP}/etc/passwd"

    def write(key: str, digest: str = RIGHT, at_bytes: int = 0) -> Any:
        return agent.write_replica.remote(
            Message.of_chunk(key, at_bytes, 4).to_json(), digest, data
        )

    def seal(attempt: str = ATTEMPT, path: str = "f", directories: tuple[str, ...] = ()) -> Any:
        files = (FileEntry(path, len(EVIL), RIGHT),)
        return agent.seal_replica.remote(OURS, Seal(attempt, 0, 1.0, files, directories))

    begin, link, send = (
        getattr(agent, f"{verb}_replica").remote for verb in ("begin", "link", "send")
    )
    asked = {
        "begins up": begin(f"../{OURS}", ATTEMPT, {}, "memory"),
        "begins no checkpoint": begin("stranger/result.json", ATTEMPT, {}, "disk"),
        "begins as up": begin(OURS, UP, {}, "memory"),
        "begins with a file up": begin(OURS, "c" * 32, {f"{UP}/tmp/evil": 4}, "memory"),
        "begins in no room": begin(OURS, "c" * 32, {}, f"{UP}/tmp"),
        **{f"writes {what}": write(key) for what, key in HOSTILE_KEYS.items()},
        "writes what has another digest": write(f"{STAGED}/evil", "0" * 32),
        "writes before the start": write(f"{STAGED}/evil", at_bytes=-4),
        "writes a pickle": agent.write_replica.remote(pickle.dumps(Payload()), RIGHT, data),
        "links a secret": link("/etc/passwd", f"{STAGED}/evil"),
        "links what is published": link(f"{published}/blob.bin", f"{STAGED}/evil"),
        "links into a checkpoint": link(f"{STAGED}/f", f"{published}/evil"),
        "seals what is not there": seal(path="evil"),
        "seals a file up": seal(path=f"{UP}/etc/passwd"),
        "seals a directory up": seal(directories=("/tmp/evil",)),
        "seals as up": seal(attempt=UP),
        "seals what has not begun": seal(attempt="d" * 32),
        "discards up": agent.discard_replica.remote(OURS, UP),
        "asks for a verb of its class": agent.ask_copy.remote(published, "__reduce__"),
        "asks of a copy up": agent.ask_copy.remote(f"{UP}/etc", "info", f"{UP}/etc/passwd"),
        "asks of a copy what is outside": agent.ask_copy.remote(published, "info", outside),
        "reads a copy outside": agent.read_copy.remote(published, outside, 0, 100),
        "reads a range outside": agent.shared_range.remote(published, outside, 0, 100),
        "reads a range elsewhere": agent.shared_range.remote(published, "/etc/passwd", 0, 100),
        "reads a range of no checkpoint": agent.shared_range.remote(f"{UP}/etc", "passwd", 0, 100),
        "reads files outside": agent.shared_files.remote(published, [outside]),
        "lists up": agent.shared_list.remote(f"{UP}/etc"),
        "brings from up": agent.bring.remote(f"{UP}/etc"),
        "has a copy of up sent": send(f"{UP}/etc", "f" * 56, ""),
        "has a copy sent to no node": send(published, "f" * 56, ""),
    }  # fmt: skip
    return {what: told(partial(ray.get, ref, timeout=WAIT_S)) for what, ref in asked.items()}


def main() -> None:
    where, published = sys.argv[1:]
    ray.init(log_to_driver=False)
    head = next(n["NodeID"] for n in ray.nodes() if "node:__internal_head__" in n["Resources"])
    (found,) = [
        a["name"]
        for a in ray.util.list_named_actors(all_namespaces=True)
        if a["name"].startswith(names_of(where)) and node_of(a["name"]) == head
    ]
    agent = ray.get_actor(found, namespace=NAMESPACE)
    entrance = ray.get(agent.replica_door.remote(), timeout=WAIT_S)
    ray.get(agent.begin_replica.remote(OURS, ATTEMPT, {"f": len(EVIL)}, "memory"))
    result = {
        "strangers": knocks(entrance),
        "through the door": through_the_door(agent, entrance),
        "is brought": ray.get(agent.bring.remote(published), timeout=WAIT_S),
        "calls": calls(agent, published),
    }
    ray.get(agent.discard_replica.remote(OURS, ATTEMPT), timeout=WAIT_S)
    print("RESULT", json.dumps(result))


if __name__ == "__main__":
    main()
