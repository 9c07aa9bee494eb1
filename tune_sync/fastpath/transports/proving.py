"""Whether bytes get through to a peer: that it answers says so only of the control connection."""

from __future__ import annotations

import secrets

from tune_sync.fastpath.transports.transport import Part, Peer, Transport

PROOF_BYTES = 4096
PROOF_TIMEOUT_S = 20.0


def prove(transport: Transport, peer: Peer, timeout_s: float = PROOF_TIMEOUT_S) -> None:
    """Write a few bytes into memory of a peer, by the transport, and drop them.

    Args:
        transport: What moves them.
        peer: Reached by it.
        timeout_s: How long it may take.

    Raises:
        TuneSyncError: They do not arrive.
    """
    data = bytearray(secrets.token_bytes(PROOF_BYTES))
    key = f"proof/{secrets.token_hex(16)}"
    with transport.register(data) as region, peer.reserve(key, PROOF_BYTES) as upload:
        upload.write(region, [Part(0, 0, PROOF_BYTES)]).wait(timeout_s)
