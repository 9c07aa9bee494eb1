"""Which transport is used, and why not the one that was wanted. Never in silence."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from tune_sync.errors import ConfigError, TransportMissingError
from tune_sync.fastpath.transport_names import AUTO, OBJECT_STORE
from tune_sync.fastpath.transports.transport import Transport

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Choice:
    """What is used.

    Attributes:
        name: Of the transport, for logs, status and metrics.
        transport: None: `OBJECT_STORE`.
        fallback_reason: Why it is not what was wanted, or not the first of all; "" if it is.
    """

    name: str
    transport: Transport | None
    fallback_reason: str = ""


def choose(wanted: str, transports: Sequence[Transport], *, required: bool = False) -> Choice:
    """Pick a transport that works on this host. A warning names a fallback, and the reason.

    Args:
        wanted: A name, or "auto" for the first of `transports` that works.
        transports: The best first.
        required: Whether to fail rather than fall back: to another than the one that is named, or,
            with "auto", to the object store.

    Raises:
        ConfigError: There is no transport of that name.
        TransportMissingError: It is required, and does not work here.
    """
    if wanted == OBJECT_STORE:
        return Choice(OBJECT_STORE, None)
    names = [t.name for t in transports]
    if wanted not in (AUTO, *names):
        known = ", ".join(repr(name) for name in (AUTO, *names, OBJECT_STORE))
        raise ConfigError(f"there is no transport {wanted!r}; give one of {known}")
    order = sorted(transports, key=lambda t: t.name != wanted)
    reasons: list[str] = []
    for transport in order:
        if not (lacking := transport.missing()):
            return _told(Choice(transport.name, transport, "; ".join(reasons)), wanted)
        reasons.append(f"{transport.name}: {lacking}")
        if required and wanted == transport.name:
            break
    reason = "; ".join(reasons) or "no transport is there"
    if required:
        raise TransportMissingError(
            f"the fast path is required, and transport {wanted!r} cannot be used here: {reason}; "
            "get what is missing, or do not require it"
        )
    return _told(Choice(OBJECT_STORE, None, reason), wanted)


def _told(choice: Choice, wanted: str) -> Choice:
    if choice.fallback_reason:
        logger.warning(
            "transport %r was asked for; %r is used (%s)",
            wanted, choice.name, choice.fallback_reason,
        )  # fmt: skip
    else:
        logger.info("transport %r is used", choice.name)
    return choice
