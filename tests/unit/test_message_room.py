"""Memory that messages are sent from, where a transport pins it."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tune_sync.behind.message_room import MessageRoom
from tune_sync.errors import PeerLostError
from tune_sync.fastpath.transports import TcpTransport

SIZE_BYTES = 4096
DATA = memoryview(b"data")


class Pins(TcpTransport):
    """Moves nothing here."""

    pins = True


@pytest.fixture
def room() -> MessageRoom:
    return MessageRoom(Pins(b"the token of one run"), SIZE_BYTES)


def test_memory_takes_one_message_after_the_other(room: MessageRoom) -> None:
    with room.holding(b"one ", DATA) as [(first, _)]:
        assert bytes(first.view[:8]) == b"one data"
    with room.holding(b"two ", DATA) as [(second, _)]:
        assert second is first and bytes(second.view[:8]) == b"two data"
    room.close()


def test_memory_that_a_stream_may_still_be_at_takes_no_other_message(room: MessageRoom) -> None:
    with ExitStack() as still:
        with (
            pytest.raises(PeerLostError, match="a stream does not end"),
            room.holding(b"one ", DATA) as [(first, _)],
        ):
            block = still.enter_context(first.view[:8])
            raise PeerLostError("a stream does not end")
        with room.holding(b"two ", DATA) as [(second, _)]:
            assert second is not first and bytes(block) == b"one data"
    room.close()
