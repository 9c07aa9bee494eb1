"""`Door`: where other nodes put replicas into memory of this one."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tune_sync.behind.replica_intake import EqualSlots, Intake
from tune_sync.behind.replica_transports import serve, transports_of
from tune_sync.behind.replicas import Replicas
from tune_sync.errors import TransportMissingError
from tune_sync.spec import Options


@dataclass(frozen=True, slots=True)
class Entrance:
    """What another node has to know of a door. For who may call Ray's actors, and nobody else.

    Attributes:
        address: What it connects to.
        token: What it has to know.
        lacks: Name of a transport -> what keeps this node from taking replicas by it; "" if
            nothing does.
    """

    address: str
    token: bytes
    lacks: Mapping[str, str]


class Door:
    """One node's, of one run. Only who is told the token is let in.

    Args:
        memory_dir: Shared memory.
        replicas: Where they go.
        host: Address of this node.
        options: By which transports they may come.

    Attributes:
        intake: What takes them.
        entrance: For those who come.

    Raises:
        ConfigError: A file for TLS cannot be used.
        TransportMissingError: They can come by none.
        PeerLostError: All ports that it may listen on are taken.
    """

    def __init__(self, memory_dir: str, replicas: Replicas, host: str, options: Options) -> None:
        token = secrets.token_bytes(32)
        transports = transports_of(options, token)
        lacks = {transport.name: transport.missing() for transport in transports}
        usable = [transport for transport in transports if not lacks[transport.name]]
        if not usable:
            raise TransportMissingError(
                "; ".join(f"{name}: {lacking}" for name, lacking in lacks.items())
                or "no transport but the object store is wanted"
            )
        self._slots = EqualSlots(Path(memory_dir))
        self.intake = Intake(self._slots, replicas)
        # The best one lets in who comes by the others, too: all begin with TCP.
        try:
            self._server = serve(usable[0], self.intake, host, options)
        except BaseException:
            self.intake.close()
            self._slots.close()
            raise
        self.entrance = Entrance(self._server.address, token, lacks)

    def close(self) -> None:
        """Let nobody in any more, and give the memory for messages back."""
        self._server.close()
        self.intake.close()
        self._slots.close()
