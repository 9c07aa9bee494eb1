"""Both sides show that they know the run's token, before anything that is sent is looked at.

Each sends a random number, and answers the other's with a keyed hash of both. So the token itself
is never sent, an answer that is overheard is worth nothing later, and nobody sends a checkpoint to
a host that only claims to be of this run.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

from tune_sync.errors import ConfigError, PeerRefusedError
from tune_sync.fastpath.transports.stream import Stream
from tune_sync.fastpath.transports.wire import MAGIC

MIN_TOKEN_BYTES = 16
_NONCE_BYTES = 32
_WELCOME, _REFUSED = b"+", b"-"


def check_token(token: bytes) -> None:
    """Raise ConfigError for a token that can be guessed."""
    if len(token) < MIN_TOKEN_BYTES:
        raise ConfigError(
            f"the token has {len(token)} bytes; give at least {MIN_TOKEN_BYTES} random ones"
        )


def greet(stream: Stream, token: bytes) -> bool:
    """The server's side. Returns whether the other knows the token; if not, it was told."""
    ours = secrets.token_bytes(_NONCE_BYTES)
    stream.send(MAGIC + ours)
    if not hmac.compare_digest(stream.receive(len(MAGIC)), MAGIC):
        return False
    theirs, proof = stream.receive(_NONCE_BYTES), stream.receive(_NONCE_BYTES)
    if not hmac.compare_digest(proof, _proof(token, b"client", ours, theirs)):
        stream.send(_REFUSED)
        return False
    stream.send(_WELCOME + _proof(token, b"server", ours, theirs))
    return True


def introduce(stream: Stream, token: bytes, address: str) -> None:
    """The client's side.

    Raises:
        PeerRefusedError: One of the two does not know the token, or does not speak this protocol.
    """
    if stream.receive(len(MAGIC)) != MAGIC:
        raise PeerRefusedError(
            f"{address} is no memory of tune_sync, or of another version; use one everywhere"
        )
    theirs, ours = stream.receive(_NONCE_BYTES), secrets.token_bytes(_NONCE_BYTES)
    stream.send(MAGIC + ours + _proof(token, b"client", theirs, ours))
    if stream.receive(1) != _WELCOME:
        raise PeerRefusedError(f"{address} refused the token; give both hosts the token of one run")
    proof = stream.receive(_NONCE_BYTES)
    if not hmac.compare_digest(proof, _proof(token, b"server", theirs, ours)):
        raise PeerRefusedError(f"{address} does not know the token; nothing was sent there")


def _proof(token: bytes, side: bytes, of_server: bytes, of_client: bytes) -> bytes:
    return hmac.digest(token, MAGIC + side + of_server + of_client, hashlib.sha256)
