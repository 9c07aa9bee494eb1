"""`CommandSyncer`: directories moved by commands of the user's own."""

from __future__ import annotations

import errno
import os
import re
import shlex
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

from tune_sync.errors import ConfigError, StoreError, SyncTimeoutError
from tune_sync.syncers.base import SYNC_PERIOD_S, SYNC_TIMEOUT_S, BackgroundSyncer
from tune_sync.syncers.choosing import chosen, fetch_chosen

# How much of what a command wrote is shown when it fails.
SHOWN_BYTES = 2000
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
# A command is ended at `sync_timeout`; whoever waits hears that from it, a little later.
GRACE_S = 30.0

_PLACEHOLDER = re.compile(r"\{(source|target)\}")


class CommandSyncer(BackgroundSyncer):
    """Moves directories with commands: `CommandSyncer(upload="aws s3 sync {source} {target}", …)`.

    A command is split into arguments as a shell would, then `{source}` and `{target}` are put in.
    So paths need no quotes, whatever is in them. No shell runs it; one that is wanted is called:
    `sh -c 'mkdir -p "$2" && cp -R "$1/." "$2"' sh {source} {target}`. The `{options}` of templates
    for Ray up to 2.6 is left out.

    A command has to put what is *in* `{source}` into `{target}`, whether or not that is there yet;
    to leave alone what else is in `{target}`; to end with 0 only if all of it is there; and to
    fail if there is no `{source}`. Commands run on the node of the driver, in its environment.
    They are stored with the experiment: keep secrets out of them.

    Args:
        upload: With `{source}`, a directory of this node, and `{target}`, where it goes.
        download: The other way round.
        delete: With `{target}`, the remote directory that has to go.
        sync_period: See `Syncer`.
        sync_timeout: Seconds after which a command is killed, with all processes of its group.

    Raises:
        ConfigError: A command cannot work.
    """

    def __init__(
        self, upload: str | Sequence[str], download: str | Sequence[str],
        delete: str | Sequence[str],
        sync_period: float = SYNC_PERIOD_S, sync_timeout: float = SYNC_TIMEOUT_S,
    ) -> None:  # fmt: skip
        super().__init__(sync_period, sync_timeout)
        self._upload = _arguments("upload", upload, ("source", "target"))
        self._download = _arguments("download", download, ("source", "target"))
        self._delete = _arguments("delete", delete, ("target",))

    def sync_up(self, local_dir: str, remote_dir: str, exclude: list[str] | None = None) -> bool:
        """See `Syncer.sync_up`."""

        def send() -> None:
            with chosen(local_dir, exclude) as source:
                self._run_command(self._upload, source, remote_dir)

        return self._start(send, f"upload to {remote_dir}")

    def sync_down(self, remote_dir: str, local_dir: str, exclude: list[str] | None = None) -> bool:
        """See `Syncer.sync_down`."""

        def fetch(target: str) -> None:
            self._run_command(self._download, remote_dir, target)

        return self._start(
            lambda: fetch_chosen(fetch, local_dir, exclude), f"download from {remote_dir}"
        )

    def delete(self, remote_dir: str) -> bool:
        """See `Syncer.delete`."""
        return self._start(
            lambda: self._run_command(self._delete, "", remote_dir), f"delete of {remote_dir}"
        )

    def wait(self, timeout: float | None = None) -> None:
        """See `Syncer.wait`."""
        super().wait(self.sync_timeout + GRACE_S if timeout is None else timeout)

    def _run_command(self, arguments: Sequence[str], source: str, target: str) -> None:
        values = {"source": source, "target": target}
        argv = [_PLACEHOLDER.sub(lambda found: values[found[1]], part) for part in arguments]
        with tempfile.TemporaryFile() as output:
            code = _run(argv, output, self.sync_timeout)
            if code:
                ended = f"signal {-code}" if code < 0 else f"exit code {code}"
                raise StoreError(f"{shlex.join(argv)} ended with {ended}: {_last_lines(output)}")


def _arguments(name: str, command: str | Sequence[str], needed: Sequence[str]) -> tuple[str, ...]:
    try:
        parts = tuple(shlex.split(command)) if isinstance(command, str) else tuple(command)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"CommandSyncer({name}={command!r}): {error}") from error
    if not parts or not all(isinstance(part, str) for part in parts):
        raise ConfigError(f"CommandSyncer({name}={command!r}): a command is needed")
    used = {found for part in parts for found in _PLACEHOLDER.findall(part)}
    for placeholder in needed:
        if placeholder not in used:
            raise ConfigError(
                f"CommandSyncer({name}={command!r}): {{{placeholder}}} is missing: it stands for "
                "the directory"
            )
    if used - set(needed):
        raise ConfigError(f"CommandSyncer({name}={command!r}): there is no {{source}} to delete")
    return tuple(part for part in parts if part != "{options}")


def _run(argv: Sequence[str], output: IO[bytes], timeout_s: float) -> int:
    """Run a command in a process group of its own; kill what is left of that if it fails."""
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOEXEC):
            raise
        way_out = "install it there, where the driver runs, or correct the command"
        if error.errno == errno.ENOEXEC:
            way_out = "a script needs a first line such as #!/bin/sh, and a program this machine"
        raise ConfigError(
            f"the program {argv[0]!r} cannot be run on {socket.gethostname()} "
            f"({error.strerror}): {way_out}"
        ) from error
    code: int | None = None
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired as error:
        raise SyncTimeoutError(
            f"{shlex.join(argv)} was not over after {timeout_s:.0f} s (sync_timeout) and was "
            f"killed: {_last_lines(output)}"
        ) from error
    finally:
        if code != 0:  # else what it has left would write beside the next try
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return code


def _last_lines(output: IO[bytes]) -> str:
    size_bytes = output.seek(0, os.SEEK_END)
    output.seek(max(0, size_bytes - SHOWN_BYTES))
    text = output.read().decode(errors="replace").strip()
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text) or "it printed nothing"
