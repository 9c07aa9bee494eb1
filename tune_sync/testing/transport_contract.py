"""What every `tune_sync.fastpath.transports.Transport` has to do, as tests that a class inherits.

```python
class TestMyTransport(TransportContract):
    def make_transport(self, token):
        return MyTransport(token)
```
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tune_sync.errors import (
    ConfigError,
    ImmutableError,
    NotWholeError,
    PathRefusedError,
    PeerLostError,
    PeerRefusedError,
    StoreFullError,
    SyncTimeoutError,
    TransferCancelledError,
)
from tune_sync.fastpath.transports import Held, Part, Shelf, Transport
from tune_sync.testing.transport_pair import (
    POOL_BYTES,
    SOON_S,
    CountingPool,
    Pair,
    raises,
    wait_until,
)

TOKEN, OTHER_TOKEN = b"the token of one run", b"the token of another"
# So often a part is sent where that shall not be over soon.
MANY_COUNT = 200
ESCAPES = ("../x", "a/../../x", "/etc/x", "a//b", "./a", "..", ".", "a/", "", "nul\0", "x\n")


class TransportContract:
    """Inherit, and say in `make_transport` how to make one. Every test gets a fresh `tmp_path`."""

    host = "127.0.0.1"

    def make_transport(self, token: bytes) -> Transport:
        """One side. Called once for each side of each test."""
        raise NotImplementedError

    @contextmanager
    def pair(self, tmp_path: Path) -> Iterator[Pair]:
        """Two sides that are connected."""
        pool = CountingPool(tmp_path)
        shelf = Shelf(pool)
        with ExitStack() as stack:
            stack.callback(shelf.close)
            server = stack.enter_context(self.make_transport(TOKEN).serve(shelf, self.host))
            transport = self.make_transport(TOKEN)
            peer = stack.enter_context(transport.connect(server.address))
            yield Pair(pool, shelf, server, transport, peer)

    def test_it_has_a_name_and_works_here(self) -> None:
        transport = self.make_transport(TOKEN)
        assert transport.name and transport.missing() == ""
        assert TOKEN.decode() not in repr(transport)

    def test_bytes_written_are_the_bytes_held(self, tmp_path: Path) -> None:
        with self.pair(tmp_path) as pair:
            for size_bytes in (1, 4095, 4096, 5_000_001):
                data = _random(size_bytes)
                pair.put(f"a/{size_bytes}", data)
                assert pair.held(f"a/{size_bytes}") == data

    def test_bytes_held_are_the_bytes_read(self, tmp_path: Path) -> None:
        with self.pair(tmp_path) as pair:
            for size_bytes in (1, 4097, 5_000_001):
                pair.hold(f"a/{size_bytes}", _random(size_bytes))
                assert pair.get(f"a/{size_bytes}") == _random(size_bytes)

    def test_parts_go_where_they_belong_in_any_order(self, tmp_path: Path) -> None:
        data = _random(1_000_003)
        edges = [0, *sorted(random.Random(1).sample(range(1, len(data)), 99)), len(data)]
        there = list(itertools.pairwise(edges))
        random.Random(2).shuffle(there)
        with self.pair(tmp_path) as pair:
            mixed, parts, at = bytearray(), list[Part](), 0
            for start, end in there:
                mixed += data[start:end]
                parts.append(Part(at, start, end - start))
                at += end - start
            back = bytearray(len(data))
            with pair.transport.register(mixed) as region, pair.transport.register(back) as other:
                with pair.peer.reserve("mixed", len(data)) as upload:
                    for half in (parts[:50], parts[50:]):
                        upload.write(region, half).wait(SOON_S)
                    upload.publish()
                assert pair.held("mixed") == data
                pair.peer.read(upload.held, other, parts).wait(SOON_S)
            assert back == mixed

    def test_only_what_is_asked_for_changes_here(self, tmp_path: Path) -> None:
        with self.pair(tmp_path) as pair:
            held = pair.hold("k", _random(10_000))
            back = bytearray(b"-" * 100)
            with pair.transport.register(back) as region:
                pair.peer.read(held, region, [Part(10, 5000, 20), Part(50, 0, 1)]).wait(SOON_S)
            want = bytearray(b"-" * 100)
            want[10:30], want[50:51] = _random(10_000)[5000:5020], _random(10_000)[:1]
            assert back == want

    def test_the_last_write_of_a_range_counts(self, tmp_path: Path) -> None:
        with self.pair(tmp_path) as pair, pair.transport.register(bytearray(b"abcdef")) as region:
            with pair.peer.reserve("k", 3) as upload:
                upload.write(region, [Part(0, 0, 3)]).wait(SOON_S)
                upload.write(region, [Part(4, 1, 2)]).wait(SOON_S)
                upload.publish()
            assert pair.held("k") == b"aef"

    def test_a_batch_of_nothing_is_over_at_once(self, tmp_path: Path) -> None:
        with self.pair(tmp_path) as pair, pair.transport.register(bytearray(3)) as region:
            upload = pair.peer.reserve("k", 3)
            transfer = upload.write(region, [])
            assert transfer.is_over
            transfer.wait(0)
            upload.write(region, [Part(0, 3, 0)]).wait(SOON_S)

    def test_nothing_is_visible_before_it_is_published(self, tmp_path: Path) -> None:
        with self.pair(tmp_path) as pair, pair.transport.register(bytearray(100)) as region:
            with pair.peer.reserve("k", 100) as upload:
                upload.write(region, [Part(0, 0, 100)]).wait(SOON_S)
                assert pair.peer.find("k") is None and pair.held("k") is None
                with raises(FileNotFoundError):
                    pair.peer.read(upload.held, region, [Part(0, 0, 1)]).wait(SOON_S)
                for _ in range(2):
                    upload.publish()
                assert pair.peer.find("k") == upload.held
            assert pair.peer.find("k") == upload.held

    def test_what_is_not_all_there_is_not_published(self, tmp_path: Path) -> None:
        with self.pair(tmp_path) as pair, pair.transport.register(bytearray(100)) as region:
            upload = pair.peer.reserve("k", 100)
            for missing in (Part(0, 50, 50), Part(0, 0, 49)):
                with raises(NotWholeError, "missing"):
                    upload.publish()
                assert pair.peer.find("k") is None
                upload.write(region, [missing]).wait(SOON_S)
            with raises(NotWholeError, "49 to 50"):
                upload.publish()
            upload.write(region, [Part(49, 49, 1)]).wait(SOON_S)
            upload.publish()

    def test_what_is_published_never_changes(self, tmp_path: Path) -> None:
        with self.pair(tmp_path) as pair, pair.transport.register(bytearray(3)) as region:
            first, second = pair.peer.reserve("k", 3), pair.peer.reserve("k", 3)
            with pair.transport.register(bytearray(b"new")) as other:
                second.write(other, [Part(0, 0, 3)]).wait(SOON_S)
            first.write(region, [Part(0, 0, 3)]).wait(SOON_S)
            first.publish()
            with raises(ImmutableError):
                second.publish()
            with raises(ImmutableError):
                pair.peer.reserve("k", 3)
            with raises(ImmutableError):
                first.write(region, [Part(0, 0, 3)]).wait(SOON_S)
            first.drop()
            second.drop()
            assert pair.held("k") == bytes(3)

    def test_what_is_dropped_gives_its_memory_back(self, tmp_path: Path) -> None:
        with self.pair(tmp_path) as pair, pair.transport.register(bytearray(100)) as region:
            with pair.peer.reserve("k", 100) as upload:
                upload.write(region, [Part(0, 0, 100)]).wait(SOON_S)
            upload.drop()
            assert pair.pool.used_bytes == 0 and pair.shelf.held_count == 0
            with raises(FileNotFoundError):
                upload.write(region, [Part(0, 0, 100)]).wait(SOON_S)
            with raises(FileNotFoundError):
                upload.publish()

    def test_what_is_not_published_goes_with_its_peer(self, tmp_path: Path) -> None:
        with self.pair(tmp_path) as pair, pair.transport.register(bytearray(100)) as region:
            other = pair.transport.connect(pair.server.address)
            other.reserve("lost", 100).write(region, [Part(0, 0, 100)]).wait(SOON_S)
            pair.put("kept", b"x", other)
            other.close()
            other.close()
            wait_until(lambda: pair.shelf.held_count == 1)
            wait_until(lambda: pair.pool.used_bytes == 1)
            assert pair.held("kept") == b"x"
            with raises(PeerLostError):
                other.find("kept")

    def test_what_is_removed_is_gone_and_its_key_is_free(self, tmp_path: Path) -> None:
        with self.pair(tmp_path) as pair, pair.transport.register(bytearray(3)) as region:
            held = pair.hold("k", b"old")
            for _ in range(2):
                pair.peer.remove("k")
            assert pair.peer.find("k") is None and pair.pool.used_bytes == 0
            pair.put("k", b"new")
            with raises(FileNotFoundError):
                pair.peer.read(held, region, [Part(0, 0, 3)]).wait(SOON_S)
            assert pair.get("k") == b"new"

    def test_a_peer_without_memory_says_so_and_can_be_used_on(self, tmp_path: Path) -> None:
        with self.pair(tmp_path) as pair:
            pair.put("first", bytes(POOL_BYTES // 2))
            with raises(StoreFullError, "memory"):
                pair.peer.reserve("second", POOL_BYTES // 2 + 1)
            pair.peer.remove("first")
            pair.put("second", bytes(POOL_BYTES // 2 + 1))

    def test_keys_are_plain_paths(self, tmp_path: Path) -> None:
        with self.pair(tmp_path) as pair:
            calls: list[Callable[[str], object]] = [
                lambda key: pair.peer.reserve(key, 1), pair.peer.find, pair.peer.remove,
            ]  # fmt: skip
            for bad in (*ESCAPES, "x" * 5000):
                for call in calls:
                    with raises(PathRefusedError):
                        call(bad)
            for odd in ("a b/ä/漢字", ".hidden", "a..b", "x" * 1000):
                pair.put(odd, odd.encode())
                assert pair.get(odd) == odd.encode()

    def test_ranges_stay_within_the_memory(self, tmp_path: Path) -> None:
        with self.pair(tmp_path) as pair, pair.transport.register(bytearray(100)) as region:
            held = pair.hold("k", bytes(50))
            wrong = (Part(-1, 0, 5), Part(0, -1, 5), Part(0, 0, -1), Part(99, 0, 2), Part(0, 49, 2))
            with pair.peer.reserve("new", 50) as upload:
                for part in wrong:
                    with raises(ConfigError):
                        upload.write(region, [part])
                    with raises(ConfigError):
                        pair.peer.read(held, region, [part])
            longer = Held("k", 100, held.handle)  # a peer that does not check
            with raises(PathRefusedError):
                pair.peer.read(longer, region, [Part(0, 0, 100)]).wait(SOON_S)
            with raises(ConfigError):
                pair.peer.reserve("none", 0)

    def test_memory_that_cannot_be_written_is_sent_and_not_read_into(self, tmp_path: Path) -> None:
        with (
            self.pair(tmp_path) as pair,
            pair.transport.register(memoryview(b"constant")) as region,
            pair.peer.reserve("k", 8) as upload,
        ):
            upload.write(region, [Part(0, 0, 8)]).wait(SOON_S)
            upload.publish()
            with raises(ConfigError):
                pair.peer.read(upload.held, region, [Part(0, 0, 8)])

    def test_an_error_of_one_transfer_leaves_the_others(self, tmp_path: Path) -> None:
        with self.pair(tmp_path) as pair, pair.transport.register(bytearray(1000)) as region:
            dropped, kept = pair.peer.reserve("dropped", 1000), pair.peer.reserve("kept", 1000)
            dropped.drop()
            for _ in range(20):
                wrong = dropped.write(region, [Part(0, 0, 1000)])
                kept.write(region, [Part(0, 0, 1000)]).wait(SOON_S)
                with raises(FileNotFoundError):
                    wrong.wait(SOON_S)
            kept.publish()
            assert pair.held("kept") == bytes(1000)

    def test_reads_and_writes_do_not_wait_for_each_other(self, tmp_path: Path) -> None:
        size_bytes = POOL_BYTES // 2
        with (
            self.pair(tmp_path) as pair,
            pair.transport.register(bytearray(b"\1" * size_bytes)) as there,
            pair.transport.register(bytearray(size_bytes)) as back,
        ):
            held = pair.hold("held", b"\2" * size_bytes)
            with pair.peer.reserve("new", size_bytes) as upload:
                transfers = []
                for _ in range(4):
                    transfers.append(upload.write(there, [Part(0, 0, size_bytes)]))
                    transfers.append(pair.peer.read(held, back, [Part(0, 0, size_bytes)]))
                for transfer in transfers:
                    transfer.wait(SOON_S)
                upload.publish()
            assert pair.held("new") == b"\1" * size_bytes
            assert back.view == b"\2" * size_bytes

    def test_after_a_cancel_no_byte_moves_here(self, tmp_path: Path) -> None:
        with self.pair(tmp_path) as pair:
            held = pair.hold("k", b"\1" * POOL_BYTES)
            back = bytearray(POOL_BYTES)
            with pair.transport.register(back) as region:
                transfer = pair.peer.read(held, region, [Part(0, 0, POOL_BYTES)])
                transfer.cancel()
                assert transfer.is_over
                seen = bytes(back)
                transfer.cancel()
                time.sleep(0.05)
                assert bytes(back) == seen
                if b"\0" in seen:
                    with raises(TransferCancelledError):
                        transfer.wait(SOON_S)
            assert pair.get("k") == b"\1" * POOL_BYTES

    def test_after_a_cancel_the_bytes_may_be_written_again(self, tmp_path: Path) -> None:
        size_bytes = POOL_BYTES
        with self.pair(tmp_path) as pair:
            with (
                pair.transport.register(bytearray(size_bytes)) as wrong,
                pair.transport.register(bytearray(b"\1" * size_bytes)) as right,
                pair.peer.reserve("k", size_bytes) as upload,
            ):
                for _ in range(3):
                    upload.write(wrong, [Part(0, 0, size_bytes)]).cancel()
                upload.write(right, [Part(0, 0, size_bytes)]).wait(SOON_S)
                upload.publish()
            assert pair.held("k") == b"\1" * size_bytes

    def test_a_wait_has_its_deadline(self, tmp_path: Path) -> None:
        with self.pair(tmp_path) as pair, pair.transport.register(bytearray(POOL_BYTES)) as region:
            upload, half = pair.peer.reserve("k", POOL_BYTES), POOL_BYTES // 2
            parts = [*[Part(0, 0, half)] * MANY_COUNT, Part(half, half, half)]
            transfer = upload.write(region, parts)
            with raises(SyncTimeoutError):
                transfer.wait(0)
            assert transfer.is_over
            with raises(NotWholeError):
                upload.publish()

    def test_a_server_that_ends_is_noticed_by_all(self, tmp_path: Path) -> None:
        with self.pair(tmp_path) as pair, pair.transport.register(bytearray(POOL_BYTES)) as region:
            upload = pair.peer.reserve("k", POOL_BYTES)
            transfer = upload.write(region, [Part(0, 0, POOL_BYTES)] * MANY_COUNT)
            pair.server.close()
            pair.server.close()
            started_s = time.monotonic()
            calls: list[Callable[[], object]] = [
                lambda: transfer.wait(SOON_S),
                upload.publish,
                lambda: pair.peer.find("k"),
            ]
            for call in calls:
                with raises(PeerLostError):
                    call()
            upload.drop()
            assert time.monotonic() - started_s < SOON_S
            with raises(PeerLostError, "answer"):
                pair.transport.connect(pair.server.address)
            wait_until(lambda: pair.pool.used_bytes == 0)

    def test_a_peer_that_ends_frees_what_it_wrote(self, tmp_path: Path) -> None:
        with self.pair(tmp_path) as pair, pair.transport.register(bytearray(POOL_BYTES)) as region:
            upload = pair.peer.reserve("k", POOL_BYTES)
            transfer = upload.write(region, [Part(0, 0, POOL_BYTES)] * MANY_COUNT)
            pair.peer.close()
            with raises(PeerLostError):
                transfer.wait(SOON_S)
            wait_until(lambda: pair.pool.used_bytes == 0)
            assert pair.held("k") is None

    def test_a_stranger_is_refused(self, tmp_path: Path) -> None:
        with self.pair(tmp_path) as pair:
            pair.hold("k", b"secret")
            with raises(PeerRefusedError, "token"):
                self.make_transport(OTHER_TOKEN).connect(pair.server.address)
            assert pair.get("k") == b"secret"

    def test_a_token_that_can_be_guessed_is_refused(self) -> None:
        for weak in (b"", b"short"):
            with raises(ConfigError, "token"):
                self.make_transport(weak)

    def test_many_peers_and_threads_at_once(self, tmp_path: Path) -> None:
        with self.pair(tmp_path) as pair, ThreadPoolExecutor(8) as pool:
            others = [pair.transport.connect(pair.server.address) for _ in range(2)]
            peers = [pair.peer, *others]

            def move(number: int) -> None:
                peer, data = peers[number % 3], _random(100_000, number)
                pair.put(f"{number}", data, peer)
                assert pair.get(f"{number}", peers[(number + 1) % 3]) == data
                peer.remove(f"{number}")

            list(pool.map(move, range(48)))
            for other in others:
                other.close()
            # Who has sent all of it may not have left it yet.
            wait_until(lambda: pair.pool.used_bytes == 0)


def _random(size_bytes: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size_bytes)
