"""Runs driver scripts in hosts and reads the result they print."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.bed.errors import DriverError
from tests.bed.host import TMP, Host, send
from tests.bed.ray_node import REPOSITORY

RESULT = "RESULT "
TAIL_CHARS = 6000
LAST_LINES_S, LOOK_S = 5.0, 0.1


def driver_argv(host: Host, python: Path, script: str | Path, args: Sequence[object]) -> list[str]:
    """The command for a script file, or for a module when the name has no slash and no ``.py``.

    A script outside the repository is copied into the host, which cannot see it otherwise.
    """
    words = [str(arg) for arg in args]
    path = Path(script)
    if path.suffix != ".py" and len(path.parts) == 1:
        return [str(python), "-m", str(script), *words]
    path = path if path.is_absolute() else REPOSITORY / path
    if not path.resolve().is_relative_to(REPOSITORY):
        inside = f"{TMP}/{path.name}"
        host.path(inside).write_bytes(path.read_bytes())
        return [str(python), inside, *words]
    return [str(python), str(path.resolve()), *words]


def drive(
    host: Host,
    argv: Sequence[str],
    log: Path,
    env: Mapping[str, str] | None,
    timeout_s: float,
    echo: bool,
) -> dict[str, Any]:
    """Run a driver to its end and return the JSON object of its last ``RESULT {...}`` line.

    Args:
        host: Where.
        argv: The command.
        log: Where everything it prints is kept.
        env: Added to the host's environment.
        timeout_s: How long it may take; then it is killed.
        echo: Print its lines here as they come.

    Raises:
        DriverError: It failed, took too long, or printed no result.
    """
    process = host.popen(argv, env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    lines: list[str] = []
    reader = threading.Thread(target=_read, args=(process, lines, log, echo), daemon=True)
    reader.start()
    late = False
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        late = True
    finally:
        if process.poll() is None:
            send(process, signal.SIGKILL)
            process.wait()
        # Ray's own children may keep the pipe open after the driver has ended. In many short waits:
        # however long this process stands still, its thread has its time afterwards.
        for _ in range(round(LAST_LINES_S / LOOK_S)):
            reader.join(LOOK_S)
            if not reader.is_alive():
                break
    return _result(list(lines), process.returncode, late, timeout_s, log)


def _read(process: subprocess.Popen[str], lines: list[str], log: Path, echo: bool) -> None:
    with log.open("w", buffering=1) as kept:
        for line in process.stdout or ():
            lines.append(line)
            kept.write(line)
            if echo:
                sys.stderr.write(line)


def _result(
    lines: list[str], returncode: int, late: bool, timeout_s: float, log: Path
) -> dict[str, Any]:
    output = "".join(lines)
    results = [line for line in lines if line.startswith(RESULT)]
    if returncode == 0 and results:
        found: dict[str, Any] = json.loads(results[-1][len(RESULT) :])
        return found
    why = f"ran over {timeout_s} s" if late else f"exited {returncode}"
    if returncode == 0:
        why = f"printed no line that starts with {RESULT!r}"
    raise DriverError(
        f"driver {why}; all of its output is in {log}. Its end:\n{output[-TAIL_CHARS:]}",
        output,
        None if late else returncode,
    )
