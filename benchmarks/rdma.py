"""RDMA in a guest beside `ib_write_bw` there: python -m benchmarks.rdma [SIZE_MB] [ROUNDS]

The device is made of software and the processor is emulated: only the ratio means anything. Needs
root, as the tests of RDMA do, and no Ray. On a host with a device: `--here`, between two processes.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import time

from tests.verbs.guest import ADDRESS, Guest
from tests.verbs.inside.keeper import TOKEN, keep
from tests.verbs.inside.others import running
from tests.verbs.inside.sides import Here, content, whole
from tune_sync.fastpath.transports import Part, RdmaTransport
from tune_sync.fastpath.verbs.checks import find_port_address
from tune_sync.fastpath.verbs.device import Device

STALL_S = 60.0
# perftest prints: bytes, iterations, peak, average, messages a second
ROW = re.compile(r"^\s*(\d+)\s+(\d+)\s+([\d.]+)\s+([\d.]+)\s+[\d.]+\s*$", re.MULTILINE)


def by_perftest(size_bytes: int) -> float:
    """Seconds for one message of `size_bytes`, from the mean rate of five."""
    place = find_port_address()
    argv = ["ib_write_bw", "-d", place.port.device, "-x", str(place.gid.index)]
    argv += ["-s", str(1 << 20), "-n", str(5 * size_bytes >> 20), "-F", "-m", "4096"]
    server = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
    try:
        for _ in range(50):
            time.sleep(0.2)
            done = subprocess.run(
                [*argv, "127.0.0.1"], text=True, capture_output=True, check=False, timeout=STALL_S
            )
            if found := ROW.search(done.stdout):
                return size_bytes / (float(found[4]) * (1 << 20))
        raise RuntimeError(done.stdout + done.stderr)
    finally:
        server.kill()
        server.wait()


def by_queue_pair(size_bytes: int, rounds: int) -> list[float]:
    device = Device(find_port_address())
    with Here(device) as here:
        there, local = here.other(size_bytes), here.memory(content(size_bytes))
        return [
            _timed(lambda: there.pair.wait(whole(local, there), STALL_S)) for _ in range(rounds)
        ]


def by_transport(size_bytes: int, rounds: int) -> list[float]:
    transport = RdmaTransport(TOKEN)
    with (
        running(keep, "127.0.0.1") as keeper,
        transport.connect(keeper.told) as peer,
        transport.register(content(size_bytes)) as region,
    ):
        upload = peer.reserve("k", size_bytes)
        parts = [Part(0, 0, size_bytes)]
        return [_timed(lambda: upload.write(region, parts).wait(STALL_S)) for _ in range(rounds)]


def here(size_bytes: int, rounds: int) -> None:
    perftest = [by_perftest(size_bytes) for _ in range(rounds)]
    limit_s = statistics.median(perftest)
    rows = {
        "ib_write_bw, requests of 1 MiB": perftest,
        "our queue pair": by_queue_pair(size_bytes, rounds + 1)[1:],
        "our transport, with digests": by_transport(size_bytes, rounds + 1)[1:],
    }
    print(f"{size_bytes >> 20} MiB, medians of {rounds}\n")
    print("| | s | range | MB/s | part of ib_write_bw |\n|---|---|---|---|---|")
    for name, times in rows.items():
        median_s = statistics.median(times)
        print(
            f"| {name} | {median_s:.3f} | {min(times):.3f} to {max(times):.3f} "
            f"| {size_bytes / median_s / 1e6:.0f} | {limit_s / median_s:.2f} |"
        )


def _timed(function: object) -> float:
    assert callable(function)
    started_s = time.perf_counter()
    function()
    return time.perf_counter() - started_s


def main(argv: list[str]) -> None:
    is_here = "--here" in argv
    numbers = [int(text) for text in argv if text != "--here"]
    size_mb, rounds = [*numbers, *[64, 5][len(numbers) :]][:2]
    if is_here:
        here(size_mb << 20, rounds)
        return
    with Guest(ADDRESS) as guest:
        done = guest.python("-m", "benchmarks.rdma", "--here", str(size_mb), str(rounds))
        print(done.output)
        sys.exit(done.returncode)


if __name__ == "__main__":
    main(sys.argv[1:])
