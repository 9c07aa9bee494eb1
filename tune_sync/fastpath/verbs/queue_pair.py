"""A reliable connection between two devices, and one-sided writes and reads over it.

Every wait has a deadline. When one passes, or anything fails, the queue pair is put into its error
state and all that was under way comes back: only then may the memory be used for something else.
"""

from __future__ import annotations

import contextlib
import secrets
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tune_sync.errors import (
    ConfigError,
    PathRefusedError,
    PeerLostError,
    StoreError,
    SyncTimeoutError,
)
from tune_sync.fastpath.verbs import library
from tune_sync.fastpath.verbs.device import Device, VerbsMemory
from tune_sync.fastpath.verbs.endpoint import Endpoint, Window

# Some devices refuse longer requests than 8 MiB. Many short ones let others come between.
CHUNK_BYTES = 1 << 20
# So much is under way that the link stays busy while Python looks after what came back.
CHUNKS_UNDER_WAY = 16
# A packet that is not acknowledged within 4.096 us * 2^18 = 1.1 s is sent again, six times. Seven
# times means for ever on some devices.
ACK_TIMEOUT = 18
RETRIES = 6
# How long what was under way may take to come back from a queue pair in its error state.
DRAIN_S = 10.0
# A routed network counts hops.
_HOPS = 64
_MIN_NOT_READY_TIMER = 12
# How much later than its memory the connections of a process end that is killed.
_END_S = 2.0
# Waits look this often whether they are still wanted.
_TICK_S = 1.0


@dataclass(slots=True, eq=False)
class Move:
    """Bytes to be moved, and how far they are.

    Attributes:
        local: Memory here.
        here_bytes: Where in it they begin.
        remote: Memory there.
        there_bytes: Where in it they begin.
        length_bytes: How many.
        is_write: From here to there; False: from there to here.
        started_bytes: What was given to the device.
        done_bytes: What came back well.
    """

    local: VerbsMemory
    here_bytes: int
    remote: Window
    there_bytes: int
    length_bytes: int
    is_write: bool
    started_bytes: int = 0
    done_bytes: int = 0

    @property
    def is_over(self) -> bool:
        """Whether all of it is there."""
        return self.done_bytes == self.length_bytes


class QueuePair:
    """One side of a connection. One thread uses it; any may `fail` it.

    Args:
        device: Open; it outlives this.
        is_target: Whether the other side may write and read memory here.
        chunk_bytes: Longest request.
        chunk_count: Most requests under way.

    Raises:
        StoreFullError: This process, or the device, may have no more.
        StoreError: The device makes none.
    """

    def __init__(
        self,
        device: Device,
        *,
        is_target: bool = False,
        chunk_bytes: int = CHUNK_BYTES,
        chunk_count: int = CHUNKS_UNDER_WAY,
    ) -> None:
        self._device = device
        self._verbs = device.verbs
        self._chunk_bytes = chunk_bytes
        self._chunk_count = chunk_count
        self._waiting: deque[Move] = deque()
        self._under_way: dict[int, tuple[Move, int]] = {}
        self._next_id = 0
        self._error: Exception | None = None
        self._is_closed = False
        self._pair_lock = threading.Lock()
        flags = self._verbs.AccessFlags
        remote = flags.REMOTE_WRITE | flags.REMOTE_READ
        self._access = int(flags.LOCAL_WRITE | remote) if is_target else 0
        self._parts: list[Any] = []
        try:
            self._make_parts()
        except OSError as error:
            self._close_parts()
            what = f"connections of RDMA device {device.used.port}"
            raise library.no_more(what, error) or StoreError(
                f"there are no {what}: {error}; see `tune-sync doctor`"
            ) from error

    def connect(self, remote: Endpoint) -> None:
        """Let it reach the other side, which does the same. Sends nothing.

        Raises:
            PeerLostError: The device finds no way there.
        """
        verbs, reads = self._verbs, min(self._device.read_count, max(1, remote.read_count))
        other = verbs.QPInfo(
            remote.queue_pair, remote.first_packet, remote.local_id,
            bytes.fromhex(remote.gid), remote.port, remote.mtu,
        )  # fmt: skip
        try:
            self._pair.to_rtr(
                other, self._device.used.gid.index, mtu=min(self.endpoint.mtu, remote.mtu),
                hop_limit=_HOPS, min_rnr_timer=_MIN_NOT_READY_TIMER,
                max_dest_rd_atomic=self._device.read_count,
            )  # fmt: skip
            self._pair.to_rts(
                self.endpoint.first_packet, timeout=ACK_TIMEOUT, retry_cnt=RETRIES,
                rnr_retry=RETRIES, max_rd_atomic=reads,
            )  # fmt: skip
        except OSError as error:
            raise PeerLostError(
                f"{self._device.used.port} finds no way to the other host's RDMA device: {error}; "
                "are both in one network? (see `tune-sync doctor` on both)"
            ) from error

    def start(self, move: Move) -> Move:
        """Queue a move. `push` and `wait`, for it or for another, put it under way.

        Raises:
            ConfigError: A range is not within its memory.
        """
        move.local.check(move.here_bytes, move.length_bytes)
        end_bytes = move.there_bytes + move.length_bytes
        if move.there_bytes < 0 or end_bytes > move.remote.length_bytes:
            raise ConfigError(f"{end_bytes} bytes do not fit into {move.remote.length_bytes} there")
        self._waiting.append(move)
        return move

    def push(self) -> None:
        """Put under way what is queued and has room; `wait` does the rest, and says what failed."""
        if self._error is None:
            try:
                self._post()
            except StoreError as error:
                self.fail(error)

    def wait(
        self, move: Move, stall_timeout_s: float, is_wanted: Callable[[], bool] = lambda: True,
        watched: int | None = None,
    ) -> None:  # fmt: skip
        """Wait until `move` is over, and let others that are queued move meanwhile.

        After an error nothing of any move is under way any more, and all fail as this one.

        Args:
            move: Started here.
            stall_timeout_s: How long nothing may come back.
            is_wanted: Asked now and then; False ends it all.
            watched: A descriptor; when the other side closes it, it is gone.

        Raises:
            SyncTimeoutError: Nothing came back for so long.
            PeerLostError: The other side does not answer, or closed what is watched.
            PathRefusedError: It refuses the address or the key.
        """
        try:
            while not move.is_over:
                self._raise_if_failed()
                self._post()
                self._take_back(stall_timeout_s, is_wanted, watched)
        except Exception as error:
            self.fail(_gone() if self._is_gone(error, watched) else error)
            self._drain()
            raise self._error or error from None

    def fail(self, error: Exception) -> None:
        """End all that is under way with `error`, from any thread. The first error counts."""
        self._error = self._error or error
        mask, state = int(self._verbs.QPAttrMask.STATE), int(self._verbs.QPState.ERR)
        with self._pair_lock, contextlib.suppress(OSError):
            if not self._is_closed:
                self._pair.modify(mask, qp_state=state)

    def close(self) -> None:
        """End all. When it returns, neither device touches memory by this connection."""
        if self._is_closed:
            return
        self.fail(PeerLostError("the RDMA connection was closed here; connect again"))
        self._drain()
        with self._pair_lock:
            self._is_closed = True
            self._close_parts()

    def _make_parts(self) -> None:
        context, number = self._device.context, self._device.used.port.number
        self._channel = self._part(context.create_comp_channel())
        self._done = self._part(context.create_cq(self._chunk_count + 1, channel=self._channel))
        self._pair = self._part(self._device.domain.create_qp(self._wanted()))
        self.endpoint = self._described()
        self._pair.to_init(number, self._access)

    def _part(self, part: Any) -> Any:
        self._parts.append(self._device.handles.keep(part))
        return part

    def _close_parts(self) -> None:
        for part in reversed(self._parts):
            self._device.handles.close(part)

    def _wanted(self) -> Any:
        return self._verbs.QPInitAttr(
            send_cq=self._done, recv_cq=self._done, max_send_wr=self._chunk_count, max_recv_wr=1
        )

    def _described(self) -> Endpoint:
        used = self._device.used
        port = self._device.context.query_port(used.port.number)
        return Endpoint(
            queue_pair=int(self._pair.qp_num),
            first_packet=secrets.randbits(24),
            local_id=int(port.lid),
            gid=used.gid.address.packed.hex(),
            port=used.port.number,
            mtu=int(port.active_mtu),
            read_count=self._device.read_count,
        )

    def _raise_if_failed(self) -> None:
        if self._error is not None:
            raise self._error

    def _post(self) -> None:
        requests = []
        while self._waiting and len(self._under_way) < self._chunk_count:
            move = self._waiting[0]
            length_bytes = min(self._chunk_bytes, move.length_bytes - move.started_bytes)
            if length_bytes:
                requests.append(self._request(move, length_bytes))
            if move.started_bytes == move.length_bytes:
                self._waiting.popleft()
        if requests:
            try:
                self._pair.post_send(requests)
            except OSError as error:
                raise StoreError(f"the RDMA device takes no requests: {error}") from error

    def _request(self, move: Move, length_bytes: int) -> Any:
        verbs, number = self._verbs, self._next_id
        self._next_id += 1
        self._under_way[number] = (move, length_bytes)
        here = move.local.address + move.here_bytes + move.started_bytes
        there = move.remote.address + move.there_bytes + move.started_bytes
        move.started_bytes += length_bytes
        code = verbs.WROpcode.RDMA_WRITE if move.is_write else verbs.WROpcode.RDMA_READ
        return verbs.SendWR(
            wr_id=number, sg_list=[verbs.SGE(here, length_bytes, move.local.local_key)],
            opcode=int(code), send_flags=int(verbs.SendFlags.SIGNALED),
            remote_addr=there, rkey=move.remote.key,
        )  # fmt: skip

    def _take_back(
        self, stall_timeout_s: float, is_wanted: Callable[[], bool], watched: int | None
    ) -> None:
        deadline_s = time.monotonic() + stall_timeout_s
        while not self._polled():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise SyncTimeoutError(
                    f"no byte moved over RDMA for {stall_timeout_s} s; try again, or raise the "
                    "stall timeout"
                )
            if not is_wanted():
                raise PeerLostError("the RDMA connection was cut here, to end a transfer")
            self._done.req_notify()
            if self._polled():  # it came before the device was asked to tell
                return
            self._sleep(min(left_s, _TICK_S), watched)

    def _polled(self) -> bool:
        """Take what has come back; raises for what failed."""
        found = self._done.poll(self._chunk_count + 1)
        failed = None
        for completion in found:
            entry = self._under_way.pop(int(completion.wr_id), None)
            if completion.status != self._verbs.WCStatus.SUCCESS:
                failed = failed or completion
            elif entry is not None:
                entry[0].done_bytes += entry[1]
        if failed is not None:
            raise self._error or self._failure(failed)
        return bool(found)

    def _failure(self, completion: Any) -> Exception:
        status, text = self._verbs.WCStatus, completion.status_str
        if completion.status == status.RETRY_EXC_ERR:
            return PeerLostError(f"the other host's RDMA device does not answer: {text}; try again")
        if completion.status in (status.REM_ACCESS_ERR, status.REM_INV_REQ_ERR):
            return PathRefusedError(f"the other host's RDMA device refused the memory: {text}")
        if completion.status in (status.LOC_QP_OP_ERR, status.WR_FLUSH_ERR):
            return PeerLostError(
                f"the RDMA connection broke: {text}; is the link up? connect again"
            )
        return StoreError(f"the RDMA device could not move bytes: {text}; connect again")

    def _sleep(self, timeout_s: float, watched: int | None) -> None:
        """Until something comes back, or the other side closes what is watched."""
        poller = select.poll()
        poller.register(self._channel.fd, select.POLLIN)
        if watched is not None:
            poller.register(watched, select.POLLRDHUP)
        for descriptor, _ in poller.poll(max(1, int(timeout_s * 1000))):
            if descriptor != self._channel.fd:
                raise _gone()
            self._channel.get_cq_event().ack_events(1)

    def _is_gone(self, error: Exception, watched: int | None) -> bool:
        """Whether it failed as the other process ends: its memory may go before its connections."""
        if watched is None or self._error is not None or isinstance(error, SyncTimeoutError):
            return False
        poller = select.poll()
        poller.register(watched, select.POLLRDHUP)
        return bool(poller.poll(int(_END_S * 1000)))

    def _drain(self) -> None:
        """Until all that was under way came back, or long enough: closing ends the rest."""
        deadline_s = time.monotonic() + DRAIN_S
        self._waiting.clear()
        while self._under_way and time.monotonic() < deadline_s:
            for completion in self._done.poll(self._chunk_count + 1):
                self._under_way.pop(int(completion.wr_id), None)
            time.sleep(0.001)


def _gone() -> PeerLostError:
    return PeerLostError("the other host closed the connection; connect again")
