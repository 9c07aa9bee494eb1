"""Looks whether nodes can replicate as the user wants, before training starts.

Nodes that join later, and what breaks later, are found by the reports there.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

from tune_sync.agents.probe import PROBE_TIMEOUT_S, answer, ask, name_of, runs_trials
from tune_sync.behind.replica_transports import names_of, serve, transports_of, wish_of
from tune_sync.errors import ConfigError, PeerLostError, TransportMissingError, TuneSyncError
from tune_sync.fastpath import Slots
from tune_sync.fastpath.transport_names import BY_CARD
from tune_sync.fastpath.transports import Shelf, prove
from tune_sync.spec import Options

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

_TLS = "tls"
# What others write a few bytes into, to see whether they get through.
_TARGET_BYTES, _TARGET_SLOTS = 4 << 20, 4

Node = Mapping[str, Any]


def check_transports(options: Options, driver_node: str) -> None:
    """Warn of nodes that lack what is wanted.

    Args:
        options: Of the run.
        driver_node: The driver's node; "" if it is on none.

    Raises:
        ConfigError: A file for TLS cannot be used on a node; names both.
        TransportMissingError: A transport is required, and a node lacks it, or does not get to the
            driver's node by it.
    """
    names = names_of(options)
    is_named = options.transport in BY_CARD  # with "auto" it need not be there
    if not options.replicates or not names:
        return
    nodes = [node for node in ray.nodes() if node["Alive"] and _takes_part(node, driver_node)]
    if options.tls or is_named:
        found = _ask_all(nodes, _look, options)
        _check_tls([(node, lacks.get(_TLS, "")) for node, lacks in found])
        if is_named:
            wanted = options.transport
            _check_cards([(node, lacks.get(wanted, "")) for node, lacks in found], options)
    others = [node for node in nodes if node["NodeID"] != driver_node]
    if options.transport_required and driver_node and others:
        _check_reach(others, options)


def _takes_part(node: Node, driver_node: str) -> bool:
    return runs_trials(node["Resources"]) or node["NodeID"] == driver_node


def _check_tls(lacking: Sequence[tuple[Node, str]]) -> None:
    if wrong := _told(lacking):
        raise ConfigError(f"FastPath(tls=...): {'. '.join(wrong)}")


def _check_cards(lacking: Sequence[tuple[Node, str]], options: Options) -> None:
    wrong = _told(lacking)
    if wrong and options.transport_required:
        raise TransportMissingError(
            f"transport {options.transport!r} is required, and cannot be used everywhere: "
            f"{'. '.join(wrong)}. Get what is missing, or do not require it"
        )
    for trouble in wrong:
        logger.warning(
            "transport %r was asked for; 'tcp' is used to and from %s", options.transport, trouble
        )


def _check_reach(nodes: Sequence[Node], options: Options) -> None:
    with _target(options) as (address, token):
        found = _ask_all(nodes, _reach, options, address, token)
    if wrong := _told([(node, "; ".join(said.values())) for node, said in found]):
        raise TransportMissingError(
            f"transport {options.transport!r} is required, and does not get to the driver's node: "
            f"{'. '.join(wrong)}. Let nodes reach each other's ports, or do not require it"
        )


def _told(lacking: Sequence[tuple[Node, str]]) -> list[str]:
    return [f"{name_of(node)}: {why}" for node, why in lacking if why]


def _ask_all(nodes: Sequence[Node], probe: Any, *args: object) -> list[tuple[Node, dict[str, str]]]:
    asked = [(node, ask(probe, *args, node["NodeID"])) for node in nodes]
    answers, end_s = [], time.monotonic() + PROBE_TIMEOUT_S
    for node, ref in asked:
        try:
            answers.append((node, answer(ref, end_s)))
        except ray.exceptions.RayError as error:  # the reports there will tell
            logger.debug("node %s cannot be asked for its transports: %s", node["NodeID"], error)
    return answers


@contextmanager
def _target(options: Options) -> Iterator[tuple[str, bytes]]:
    """Memory of this process that other nodes reach as they will that of its node's agent."""
    token = secrets.token_bytes(32)
    transports = transports_of(options, token)
    lacks = {transport: transport.missing() for transport in transports}
    usable = [transport for transport in transports if not lacks[transport]]
    if not usable:
        raise TransportMissingError(f"here, on the driver's node: {'; '.join(lacks.values())}")
    slots = Slots(
        Path(options.memory_dir), memory_limit_bytes=_TARGET_BYTES,
        max_checkpoints_in_memory=_TARGET_SLOTS,
    )  # fmt: skip
    shelf = Shelf(slots)
    try:
        try:
            server = serve(usable[0], shelf, ray.util.get_node_ip_address(), options)
        except PeerLostError as error:
            raise TransportMissingError(f"here, on the driver's node: {error}") from error
        with server:
            yield server.address, token
    finally:
        shelf.close()
        slots.close()


# On the nodes


def _look(options: Options, node_id: str) -> dict[str, str]:
    """What this node lacks: name of a transport, or "tls" -> what that is."""
    try:
        wish_of(options)
    except ConfigError as error:
        if by_card := BY_CARD & {*names_of(options)}:
            return dict.fromkeys(by_card, str(error))
    try:
        transports = transports_of(options, secrets.token_bytes(32))
    except ConfigError as error:
        return {_TLS: str(error)}
    return {transport.name: transport.missing() for transport in transports}


def _reach(options: Options, address: str, token: bytes, node_id: str) -> dict[str, str]:
    """Why no transport gets to `address`; empty if one does."""
    lost: dict[str, str] = {}
    for transport in transports_of(options, token):
        if lacking := transport.missing():
            lost[transport.name] = f"{transport.name}: {lacking}"
            continue
        try:
            with transport.connect(address) as peer:
                prove(transport, peer)
        except (TuneSyncError, OSError) as error:
            lost[transport.name] = f"{transport.name}: {error}"
        else:
            return {}
    return lost
