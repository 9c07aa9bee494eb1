"""A home that is on another node, reached through its agent and the Ray object store."""

from __future__ import annotations

import builtins
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np
import ray
from ray.exceptions import ActorUnavailableError, RayError, RayTaskError

from tune_sync import layout
from tune_sync.agents.home_agent import NAMESPACE
from tune_sync.agents.home_errors import home_error, said_by
from tune_sync.agents.in_flight import InFlight
from tune_sync.errors import HomeLostError, TuneSyncError
from tune_sync.guard import staged_part
from tune_sync.homes.digests import digest_of
from tune_sync.homes.home import Piece, ReadsAll
from tune_sync.homes.store import Info
from tune_sync.manifest import Conflicts, Seal
from tune_sync.new_pages import new_pages

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

# The budget for bytes that this process has put into the object store and that the home has not
# confirmed. With one chunk being filled it bounds our memory at any checkpoint size.
IN_FLIGHT_BYTES = 64 << 20
READ_BYTES = 16 << 20
# Reads run ahead of the reader by this many ranges, over all threads of the process: what was
# read waits in the home node's object store, which has to hold it for all processes.
READS_AT_ONCE = 4
# After a failed report its room is free again when the error reaches the trainable, unless the
# home hangs; then it is freed later.
DISCARD_WAIT_S = 5.0
# An agent that is stopped, or behind a link that is down, is asked again after a while.
AGAIN_S = 2.0

# Asks an agent; returns Ray's reference to the answer. It may be called again.
_Ask = Callable[[], Any]


class RemoteHome(ReadsAll):
    """See `home.Home`. One a process and run; methods may be called from any thread.

    Args:
        agent_name: The home agent's name in Ray.
        root: The experiment directory on the home node.
        owner: Id of the run.
        depth: See `layout.classify`.
        timeout_s: How long to wait for any one answer. An agent that cannot be reached meanwhile
            is asked again: what one call does may be done twice.
    """

    in_place = False
    keeps_chunks = False
    rewrite_s = 0.0

    def __init__(
        self, agent_name: str, root: str, owner: str, depth: int, timeout_s: float
    ) -> None:
        self._name = agent_name
        self._where = (root, owner, depth)
        self._timeout_s = timeout_s
        self._in_flight = InFlight(IN_FLIGHT_BYTES, lambda sent: self._answer("writing", *sent))
        self._reads = threading.Semaphore(READS_AT_ONCE)
        self._agent = self._find()

    def info(self, key: str) -> Info | None:
        """See `Home.info`."""
        found: Info | None = self._call("info", key)
        return found

    def list(self, key: str, recursive: bool) -> list[Info]:
        """See `Home.list`."""
        found: list[Info] = self._call("list", key, recursive)
        return found

    def read(self, key: str, offset_bytes: int, length_bytes: int) -> memoryview:
        """See `Home.read`. Ranges travel side by side."""
        # Pages of its own: they go back to the system with the last reference, and a process
        # that reads in many threads does not keep some for each of them.
        out = memoryview(new_pages(length_bytes))
        starts = deque(range(0, length_bytes, READ_BYTES))
        running: deque[tuple[int, _Ask, Any]] = deque()
        got_bytes = 0
        try:
            while starts or running:
                while starts and self._reads.acquire(blocking=not running):
                    size_bytes = min(READ_BYTES, length_bytes - starts[0])
                    at = offset_bytes + starts[0]
                    ask = partial(self._start_read, key, at, size_bytes)
                    try:
                        ref = ask()
                    except BaseException:
                        self._reads.release()
                        raise
                    running.append((starts.popleft(), ask, ref))
                data = self._answer(f"reading {key}", *running[0][1:])
                at = running.popleft()[0]
                out[at : at + len(data)] = memoryview(data)
                got_bytes += len(data)
                del data
                self._reads.release()
        finally:
            if running:
                self._reads.release(len(running))
        return out[:got_bytes]

    def read_many(self, keys: Sequence[str]) -> builtins.list[bytes]:
        """See `Home.read_many`."""
        ask = partial(self._agent.read_many.remote, *self._where, list(keys))
        lengths, data = self._answer(f"reading {keys[0]} …", ask)
        files, at = [], 0
        for length_bytes in lengths:
            files.append(data[at : at + length_bytes].tobytes())
            at += length_bytes
        return files

    def make_dir(self, key: str) -> None:
        """See `Home.make_dir`."""
        self._call("make_dir", key)

    def remove(self, key: str) -> None:
        """See `Home.remove`."""
        self._call("remove", key)

    def begin(self, checkpoint: str) -> str:
        """See `Home.begin`."""
        return str(self._call("begin", checkpoint))

    def begin_file(self) -> str:
        """See `Home.begin_file`."""
        return str(self._call("begin_file"))

    def expect(self, key: str, size_bytes: int) -> None:
        """See `Home.expect`: a file grows as it is written."""

    def write(self, key: str, offset_bytes: int, data: bytes | memoryview) -> None:
        """See `Home.write`. Returns while the chunk is on its way, within the budget."""
        self._send(
            key, data,
            lambda ref, digest: self._agent.write.remote(
                *self._where, key, offset_bytes, digest, ref
            ),
        )  # fmt: skip

    def write_batch(self, pieces: Sequence[Piece], data: bytes | bytearray | memoryview) -> None:
        """See `Home.write_batch`. Returns while the batch is on its way, within the budget."""
        self._send(
            pieces[0].key, data,
            lambda ref, digest: self._agent.write_batch.remote(
                *self._where, list(pieces), digest, ref
            ),
        )  # fmt: skip

    def link(self, source: str, target: str) -> None:
        """See `Home.link`."""
        self._call("link", source, target)

    def flush(self, key: str) -> None:
        """See `Home.flush`."""
        self._in_flight.flush(staged_part(key))

    def finish(self, key: str) -> None:
        """See `Home.finish`."""
        self.flush(key)

    def seal(self, checkpoint: str, seal: Seal) -> None:
        """See `Home.seal`."""
        self._call("seal", checkpoint, seal)

    def reported_as(self, attempt: str) -> str:
        """See `Home.reported_as`."""
        return attempt

    def commit_file(self, incoming: str, key: str, durable: bool) -> None:
        """See `Home.commit_file`."""
        self._call("commit_file", incoming, key, durable)

    def put_file(self, key: str, data: bytes | bytearray | memoryview, durable: bool) -> None:
        """See `Home.put_file`. One message: a trial may have thousands."""
        incoming = f"{layout.INCOMING_DIR}/{uuid.uuid4().hex}"
        body = bytes(data)
        put = self._agent.put_file.remote
        ask = partial(put, *self._where, incoming, key, digest_of(body), body, durable)
        try:
            self._answer(f"writing {key}", ask)
        except BaseException:
            with suppress(TuneSyncError):
                self.drop_file(incoming)
            raise

    def drop_file(self, incoming: str) -> None:
        """See `Home.drop_file`. Waited for a moment only: it may follow a hang."""
        self._give_up("drop_file", incoming)

    def discard_attempt(self, checkpoint: str, attempt: str) -> None:
        """See `Home.discard_attempt`. Waited for a moment only: it may follow a hang."""
        self._give_up("discard_attempt", checkpoint, attempt)

    def publish(self, checkpoint: str, strict: bool, attempts: Collection[str]) -> Conflicts:
        """See `Home.publish`."""
        conflicts: Conflicts = self._call("publish", checkpoint, strict, list(attempts))
        return conflicts

    # Inside

    def _find(self) -> Any:
        try:
            return ray.get_actor(self._name, namespace=NAMESPACE)
        except ValueError as error:
            raise HomeLostError(
                f"the home agent of {self._where[0]} is gone: its driver ended or its node died; "
                "restore the experiment to go on"
            ) from error

    def _call(self, verb: str, *args: object) -> Any:
        ask = partial(self._agent.call.remote, *self._where, verb, *args)
        return self._answer(f"{verb} {args[:1]}", ask)

    def _give_up(self, verb: str, *args: object) -> None:
        with self._ours(f"{verb} {args[:1]}"):
            ref = self._agent.call.remote(*self._where, verb, *args)
            ray.wait([ref], timeout=DISCARD_WAIT_S)

    def _send(
        self, key: str, data: bytes | bytearray | memoryview, start: Callable[[Any, str], Any]
    ) -> None:
        def put() -> tuple[_Ask, Any]:
            with self._ours(f"writing {key}"):
                chunk = [ray.put(np.frombuffer(data, dtype=np.uint8))]
                digest = digest_of(data)
                ref = start(chunk[0], digest)
                _on_arrival(ref, chunk.clear)  # who waits for it may come much later
                return lambda: start(chunk[0], digest), ref

        self._in_flight.send(staged_part(key), len(data), put)

    def _start_read(self, key: str, offset_bytes: int, length_bytes: int) -> Any:
        with self._ours(f"reading {key}"):
            return self._agent.read.remote(*self._where, key, offset_bytes, length_bytes)

    def _answer(self, doing: str, ask: _Ask, ref: Any = None) -> Any:
        """What the agent says to a question; `ref` is that of one that was asked already."""
        deadline_s = time.monotonic() + self._timeout_s
        is_said = False
        with self._ours(doing):
            while True:
                ref = ask() if ref is None else ref
                try:
                    return ray.get(ref, timeout=max(deadline_s - time.monotonic(), 0.0))
                except ActorUnavailableError as error:
                    if time.monotonic() + AGAIN_S > deadline_s:
                        raise
                    if not is_said:
                        logger.warning(
                            "%s: the home agent of %s cannot be reached, goes on asking for %.0f s "
                            "(sync_timeout): %s", doing, self._where[0],
                            deadline_s - time.monotonic(), said_by(error),
                        )  # fmt: skip
                    ref, is_said = None, True
                time.sleep(AGAIN_S)

    @contextmanager
    def _ours(self, doing: str) -> Iterator[None]:
        """Errors of Ray leave it as ours."""
        try:
            yield
        except RayError as error:
            found = home_error(error, self._where[0], doing, self._timeout_s)
            raise found from (None if isinstance(error, RayTaskError) else error)


def _on_arrival(ref: Any, then: Callable[[], None]) -> None:
    """Call `then`, in a thread of Ray's, once what was asked for is done; not if it fails."""

    def look(done: Future[Any]) -> None:
        if done.exception() is None:
            then()

    ref.future().add_done_callback(look)
