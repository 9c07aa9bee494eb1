"""One home agent serves all runs of a process."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.exceptions import RayActorError

from tests.hosts.searches import wait_for
from tests.unit.staged import CHECKPOINT, sealed
from tune_sync.agents.connect import node_id, start_home
from tune_sync.agents.home_agent import NAMESPACE, start_agent
from tune_sync.agents.remote_home import RemoteHome
from tune_sync.behind.staged_copy import StagedCopies
from tune_sync.behind.staged_send import send_attempt
from tune_sync.errors import DamagedError, HomeLostError
from tune_sync.homes.home import LocalHome
from tune_sync.homes.sites import format_json
from tune_sync.layout import FORMAT_KEY, INCOMING_DIR
from tune_sync.transfer.chunks import CHUNK_BYTES
from tune_sync.transfer.streams import FileStream


def test_the_agent_outlives_each_start_of_a_further_run(local_ray: None) -> None:
    first = start_home(node_id())
    for _ in range(3):
        assert start_home(node_id()) == first
        time.sleep(1)  # Ray ends an actor without handles a moment later
        agent = ray.get_actor(first.agent_name, namespace=NAMESPACE)
        assert ray.get(agent.ping.remote(), timeout=150) == node_id()


def is_there(name: str) -> bool:
    try:
        agent = ray.get_actor(name, namespace=NAMESPACE)
        ray.get(agent.ping.remote(), timeout=150)
    except (ValueError, RayActorError):
        return False
    return True


def test_one_that_was_killed_is_started_anew(local_ray: None) -> None:
    address = start_home(node_id())
    ray.kill(ray.get_actor(address.agent_name, namespace=NAMESPACE), no_restart=True)
    wait_for(lambda: not is_there(address.agent_name), "its end")
    assert start_home(node_id()) == address
    agent = ray.get_actor(address.agent_name, namespace=NAMESPACE)
    assert ray.get(agent.ping.remote(), timeout=150) == node_id()


class Flipping(RemoteHome):
    """A home to which the first so many messages come with a bit flipped."""

    flips_count = 1

    def _send(self, key: str, data: Any, start: Callable[[Any, str], Any]) -> None:
        def flipped(ref: Any, digest: str) -> Any:
            if self.flips_count:
                self.flips_count -= 1
                ref = ray.put(ray.get(ref) ^ 1)
            return start(ref, digest)

        super()._send(key, data, flipped)


def test_what_arrives_damaged_at_home_is_sent_again(local_ray: None, tmp_path: Path) -> None:
    root = tmp_path / "exp"
    (root / FORMAT_KEY).parent.mkdir(parents=True)
    (root / FORMAT_KEY).write_bytes(format_json())
    staged = LocalHome(tmp_path / "node")
    attempt = sealed(staged.committer, {"a": b"body"}, ranks_count=1)
    copies = StagedCopies(staged.root)
    seal = copies.seal(CHECKPOINT, attempt)
    assert seal is not None
    home = Flipping(start_home(node_id()).agent_name, str(root), "", 1, 60.0)
    arrived = send_attempt(copies, CHECKPOINT, seal, home)
    assert home.flips_count == 0
    home.publish(CHECKPOINT, False, [arrived])
    assert (root / CHECKPOINT / "a").read_bytes() == b"body"


def test_nothing_stays_of_a_file_one_of_whose_chunks_failed(
    local_ray: None, tmp_path: Path
) -> None:
    (tmp_path / FORMAT_KEY).parent.mkdir(parents=True)
    (tmp_path / FORMAT_KEY).write_bytes(format_json())
    home = Flipping(start_home(node_id()).agent_name, str(tmp_path), "", 1, 60.0)
    stream = FileStream(home, "trial/artifact", lambda stream: None)
    stream.write(bytes(CHUNK_BYTES))
    (incoming,) = home._in_flight._pending_count
    with pytest.raises(DamagedError):
        for _ in range(2):  # the third waits for the first, while the second is under way
            stream.write(bytes(CHUNK_BYTES))
    with pytest.raises(DamagedError):
        home.flush(incoming)
    assert list((tmp_path / INCOMING_DIR).iterdir()) == []


class Noting(RemoteHome):
    """Notes which chunks it sent."""

    def __init__(self, *args: Any) -> None:
        self.chunks: list[str] = []
        super().__init__(*args)

    def _send(self, key: str, data: Any, start: Callable[[Any, str], Any]) -> None:
        def noted(ref: Any, digest: str) -> Any:
            self.chunks.append(ref.hex())
            return start(ref, digest)

        super()._send(key, data, noted)


def is_referenced(chunk: str) -> bool:
    held = ray._private.worker.global_worker.core_worker.get_all_reference_counts()
    return any(chunk in str(name) for name in held)


def test_a_chunk_that_has_arrived_is_let_go_though_nobody_waits_for_it(
    local_ray: None, tmp_path: Path
) -> None:
    (tmp_path / FORMAT_KEY).parent.mkdir(parents=True)
    (tmp_path / FORMAT_KEY).write_bytes(format_json())
    home = Noting(start_home(node_id()).agent_name, str(tmp_path), "", 1, 60.0)
    kept = ray.put(bytes(10))
    assert is_referenced(kept.hex())
    incoming = home.begin_file()
    home.write(incoming, 0, bytes(CHUNK_BYTES))
    (chunk,) = home.chunks
    wait_for(lambda: not is_referenced(chunk), "the end of the chunk")
    home.flush(incoming)
    assert (tmp_path / incoming).stat().st_size == CHUNK_BYTES


class Losing(RemoteHome):
    """Whose second chunk is lost on its way, as a node or the network fails."""

    sent_count = 0

    def _send(self, key: str, data: Any, start: Callable[[Any, str], Any]) -> None:
        self.sent_count += 1
        if self.sent_count == 2:
            raise HomeLostError("bytes were lost on their way")
        super()._send(key, data, start)


def test_nothing_stays_of_a_file_whose_bytes_were_lost_where_the_agent_answers(
    local_ray: None, tmp_path: Path
) -> None:
    (tmp_path / FORMAT_KEY).parent.mkdir(parents=True)
    (tmp_path / FORMAT_KEY).write_bytes(format_json())
    home = Losing(start_home(node_id()).agent_name, str(tmp_path), "", 1, 60.0)
    stream = FileStream(home, "trial/artifact", lambda stream: None)
    stream.write(bytes(CHUNK_BYTES))
    (incoming,) = home._in_flight._pending_count
    with pytest.raises(HomeLostError):
        stream.write(bytes(CHUNK_BYTES))
    with contextlib.suppress(FileNotFoundError):  # the first one may be late by now
        home.flush(incoming)
    assert list((tmp_path / INCOMING_DIR).iterdir()) == []


def test_one_that_many_threads_ask_for_lives_on(local_ray: None) -> None:
    name = f"home-{uuid.uuid4().hex}"
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: start_agent(name, node_id()), range(8)))
    time.sleep(1)
    agent = ray.get_actor(name, namespace=NAMESPACE)
    assert ray.get(agent.ping.remote(), timeout=150) == node_id()
