"""A process that is stopped for longer than the stall limit, and goes on, loses no transfer."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

STALL_S = 5.0
STOPPED_S = 8.0
TIMEOUT_S = 100.0
RECEIVES = f"""
import socket, sys
from tune_sync.fastpath.transports.stream import Stream
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
stream = Stream(connection, "peer", {STALL_S})
stream.send(b"began")
assert stream.receive(4) == b"last"
stream.send(b"done")
"""


def test_what_came_while_a_process_was_stopped_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(TIMEOUT_S)
        port = str(server.getsockname()[1])
        process = subprocess.Popen([sys.executable, "-c", RECEIVES, port])
        try:
            peer, _ = server.accept()
            with peer:
                peer.settimeout(TIMEOUT_S)
                assert peer.recv(5, socket.MSG_WAITALL) == b"began"
                os.kill(process.pid, signal.SIGSTOP)
                time.sleep(STOPPED_S / 2)
                peer.sendall(b"la")
                time.sleep(STOPPED_S / 2)
                os.kill(process.pid, signal.SIGCONT)
                peer.sendall(b"st")
                assert peer.recv(4, socket.MSG_WAITALL) == b"done"
            assert process.wait(TIMEOUT_S) == 0
        finally:
            process.kill()
            process.wait()
