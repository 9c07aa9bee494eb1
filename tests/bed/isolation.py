"""Proof that hosts share nothing they could pass results through."""

from __future__ import annotations

from collections.abc import Mapping

from tests.bed.errors import BedError
from tests.bed.host import Host
from tests.bed.ray_node import REPOSITORY

PLACES = '"$HOME" /tmp /dev/shm /srv'
PLACE_COUNT = 4
MARK = f'for at in {PLACES}; do echo "$0" > "$at/.bed-$0"; done'
# Prints every mark that is to be seen, so each host must print its own four and no more.
LOOK = f'for at in {PLACES}; do cat "$at"/.bed-*; rm "$at/.bed-$0"; done'
FACTS = "hostname; ip -4 -o addr show e0 | awk '{print $4}'; readlink /proc/self/ns/pid"
WRITE_OUTSIDE = f"touch {REPOSITORY}/.bed-write /etc/.bed-write 2>&1"
WRITE_COUNT = 2


def assert_isolated(hosts: Mapping[str, Host]) -> None:
    """Show that hosts have disks, memory, addresses and processes of their own.

    Writes a mark in every private place of every host, then looks for marks of others.

    Raises:
        BedError: Something is shared, or a place outside the private ones can be written.
    """
    for name, host in hosts.items():
        host.exec(["sh", "-c", MARK, name])
    facts: dict[str, list[str]] = {}
    for name, host in hosts.items():
        seen = host.exec(["sh", "-c", LOOK, name]).stdout.split()
        if seen != [name] * PLACE_COUNT:
            raise BedError(f"{name} sees marks {seen} instead of its own {PLACE_COUNT}")
        facts[name] = host.exec(["sh", "-c", FACTS]).stdout.split()
        written = host.exec(["sh", "-c", WRITE_OUTSIDE], check=False)
        if written.stdout.count("Read-only file system") != WRITE_COUNT:
            raise BedError(f"{name} can write outside its own disks: {written.stdout}")
        if facts[name][0] != name or not facts[name][1].startswith(host.spec.address + "/"):
            raise BedError(f"{name} calls itself {facts[name]}")
    for kind in zip(*facts.values(), strict=True):
        if len(set(kind)) != len(kind):
            raise BedError(f"two hosts share a name, an address or their processes: {facts}")
