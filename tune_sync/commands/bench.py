"""`tune-sync bench target` and `tune-sync bench initiator`: nothing else has to be started."""

from __future__ import annotations

import argparse
import errno
import json
import signal
import socket
import threading
from dataclasses import asdict, replace
from pathlib import Path

from tune_sync.commands.device import add_device_arguments, wished
from tune_sync.commands.numbers import count, readable, seconds, size_bytes
from tune_sync.errors import ConfigError
from tune_sync.fastpath import bench, environment
from tune_sync.fastpath.bench import Load, Result, Visit
from tune_sync.fastpath.transport_names import AUTO, MOONCAKE, RDMA, TCP
from tune_sync.fastpath.transports import (
    Limits,
    MooncakeTransport,
    RdmaTransport,
    TcpTransport,
    Tls,
    Transport,
    choose,
)
from tune_sync.fastpath.transports.rdma import BLOCK_BYTES as RDMA_BLOCK_BYTES
from tune_sync.fastpath.transports.tcp import host_and_port
from tune_sync.fastpath.transports.transport import STREAMS

GB = 1e9

# What goes from memory to memory; the object store is Ray's, and no part of this.
_TRANSPORTS = (AUTO, RDMA, MOONCAKE, TCP)

# What a socket says of an address, or a port, where it cannot be.
_NO_PLACE = (
    errno.EADDRNOTAVAIL, errno.EADDRINUSE, errno.EACCES, socket.EAI_NONAME, socket.EAI_AGAIN,
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what it takes."""
    roles = parser.add_subparsers(dest="role", required=True, metavar="target|initiator")
    target = roles.add_parser("target", help="hold memory, until it is stopped")
    target.add_argument(
        "--listen", default="127.0.0.1:0", metavar="HOST:PORT",
        help="address of this host that others reach (127.0.0.1:0: this host only, any port)",
    )  # fmt: skip
    target.add_argument("--memory", type=size_bytes, default="4GiB", help="most to use (4GiB)")
    target.add_argument("--duration", type=seconds, help="seconds until it ends (never)")
    initiator = roles.add_parser("initiator", help="write into a target's memory, or read it")
    add = initiator.add_argument
    add("address", metavar="HOST:PORT", help="what the target printed")
    add("--operation", choices=(bench.WRITE, bench.READ), default=bench.WRITE, help="(write)")
    add("--block-size", type=size_bytes, default="4MiB", help="of each part (4MiB)")
    add("--batch-size", type=count, default=16, help="parts that are waited for together (16)")
    add("--threads", type=count, default=4, help="that start batches (4)")
    add("--streams", type=count, default=STREAMS, help=f"to the target ({STREAMS})")
    add("--duration", type=seconds, default=10.0, help="seconds (10)")
    add("--json", action="store_true", help="print one line of JSON")
    for role in (parser, target, initiator):
        role.epilog = (
            f"environment: {environment.TOKEN}, the same on both hosts, such as `openssl rand -hex "
            f"16` prints. Transports: {', '.join(_TRANSPORTS)}."
        )
    for role in (target, initiator):
        role.add_argument(
            "--transport", choices=_TRANSPORTS, default=AUTO,
            help="(auto: rdma where this host can, else tcp)",
        )  # fmt: skip
        add_device_arguments(role)
        for name in ("certificate", "key", "authority"):
            role.add_argument(f"--tls-{name}", type=Path, metavar="FILE", help="for TLS: all three")


def run(arguments: argparse.Namespace) -> int:
    """Run one side. The token is that of the environment."""
    return _target(arguments) if arguments.role == "target" else _initiate(arguments)


def _target(arguments: argparse.Namespace) -> int:
    try:
        host, port = host_and_port(arguments.listen)
    except ConfigError as error:
        raise ConfigError(f"--listen {error}") from error
    transport = _transport(arguments, Limits())
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        bench.serve(
            transport, host, port, arguments.memory, stop=stop,
            on_ready=lambda address: print(f"{transport.name} target at {address}", flush=True),
            on_visit=_tell_visit, duration_s=arguments.duration,
        )  # fmt: skip
    except OSError as error:
        if error.errno not in _NO_PLACE:
            raise
        raise ConfigError(
            f"--listen {arguments.listen}: {error}; give an address of this host and a free port"
        ) from error
    return 0


def _initiate(arguments: argparse.Namespace) -> int:
    host_and_port(arguments.address)  # what is wrong with it is told before all else
    load = Load(
        arguments.operation, arguments.block_size, arguments.batch_size, arguments.threads,
        arguments.duration,
    )  # fmt: skip
    transport = _transport(arguments, Limits(arguments.streams))
    result = bench.initiate(transport, arguments.address, load)
    if arguments.json:
        print(json.dumps({"transport": transport.name, **asdict(load), **asdict(result)}))
    else:
        _tell_result(transport.name, load, result)
    return 0


def _transport(arguments: argparse.Namespace, limits: Limits) -> Transport:
    token, tls, wish = environment.token(), _tls(arguments), wished(arguments)
    of_cards = replace(limits, block_bytes=RDMA_BLOCK_BYTES)
    transports: list[Transport] = [
        RdmaTransport(token, tls=tls, limits=of_cards, wish=wish),
        TcpTransport(token, tls=tls, limits=limits),
    ]
    if arguments.transport != AUTO:  # which never takes it
        transports.append(MooncakeTransport(token, tls=tls, limits=of_cards, wish=wish))
    chosen = choose(arguments.transport, transports, required=True).transport
    if chosen is None:
        raise ConfigError(f"--transport {arguments.transport} is not one of this bench")
    return chosen


def _tls(arguments: argparse.Namespace) -> Tls | None:
    files = (arguments.tls_certificate, arguments.tls_key, arguments.tls_authority)
    if not any(files):
        return None
    if not all(files):
        raise ConfigError("TLS needs --tls-certificate, --tls-key and --tls-authority; give all")
    return Tls(*files)


def _tell_result(name: str, load: Load, result: Result) -> None:
    gigabytes = result.moved_bytes / GB
    print(f"{load.operation} over {name}: {gigabytes / result.seconds:.2f} GB/s")
    print(f"  {gigabytes:.1f} GB in {result.seconds:.1f} s by {load.thread_count} threads")
    print(
        f"  a batch of {load.batch_count} x {readable(load.block_bytes)}: "
        f"p50 {result.p50_s * 1e3:.1f} ms, p99 {result.p99_s * 1e3:.1f} ms"
    )
    print(f"  CPU here: {result.cpu_s / gigabytes:.2f} s per GB")


def _tell_visit(visit: Visit) -> None:
    moved_bytes = visit.written_bytes + visit.read_bytes
    cost = f"{visit.cpu_s / (moved_bytes / GB):.2f} s per GB" if moved_bytes else "nothing moved"
    print(
        f"{readable(visit.written_bytes)} written, {readable(visit.read_bytes)} read; "
        f"CPU here: {cost}", flush=True,
    )  # fmt: skip
