"""Sessions with an SFTP server: who it is, who asks, and one thread at a time for each."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from tune_sync.errors import ConfigError

# Each is a connection of its own, with a process for it on the server, which takes ten new ones at
# a time as a rule (MaxStartups). More requests than this wait for one another; streams do not: what
# they wait for may be such a request.
SESSIONS_COUNT = 4
# One that was not used for so long is asked first whether it is still there.
FRESH_S = 10.0
KEEPALIVE_S = 30
KNOWN_HOSTS = ("~/.ssh/known_hosts", "/etc/ssh/ssh_known_hosts")
PORT = 22
# In the place of an answer to who asks.
_NO_ANSWER = re.compile("saw EOF|timeout", re.IGNORECASE)

# Its threads would print what is told, or tried again, here; who wants to see it can.
logging.getLogger("paramiko").addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True)
class _Session:
    client: Any  # which closes the connection when nobody has it
    sftp: Any
    used_s: float = 0.0

    @property
    def is_cut(self) -> bool:
        return bool(self.sftp.get_channel().closed)

    def close(self) -> None:
        with suppress(Exception):
            self.client.close()


class SftpSessions:
    """May be used from any thread. Nothing is connected before the first use.

    Args:
        url: For messages.
        host: Name or address.
        port: 0 for the usual one.
        options: `username`, `password`, `key_filename`, `passphrase`, `host_key`, texts; what is
            left out is as with `ssh`: the user of this process, its agent and keys, known hosts.
        request_s: Seconds without an answer after which a request has failed.
        connect_s: Seconds to connect.
    """

    def __init__(
        self, url: str, host: str, port: int, options: Mapping[str, Any],
        request_s: float, connect_s: float,
    ) -> None:  # fmt: skip
        import paramiko

        self._paramiko: Any = paramiko
        self._url, self._host, self._port, self._options = url, host, port or PORT, dict(options)
        self._request_s, self._connect_s = request_s, connect_s
        self._slots = threading.BoundedSemaphore(SESSIONS_COUNT)
        self.renew()

    def renew(self) -> None:
        """Have all sessions from now on begin anew, with the credentials of now."""
        # What is in use goes back to the list that it came from, which nobody looks into.
        self._idle: list[_Session] = []

    @contextmanager
    def one(self, *, counts: bool = True) -> Iterator[Any]:
        """A `paramiko.SFTPClient` for one thread, as long as the block.

        Args:
            counts: Wait until fewer than `SESSIONS_COUNT` are in use. Then the block must not wait
                for another one.

        Raises:
            ConfigError: The server's key is not known, or a setting cannot work.
            PermissionError: The server knows no such user, key or password.
            ConnectionError: It cannot be reached, or the connection was cut.
            TimeoutError: It does not answer, or all sessions are in use for so long.
        """
        if counts and not self._slots.acquire(timeout=self._request_s):
            raise TimeoutError("timed out: all sessions with the server are in use")
        try:
            idle = self._idle
            session = self._taken(idle) or self._opened()
            try:
                yield session.sftp
            except BaseException as error:
                if self._is_answer(error) and not session.is_cut:
                    idle.append(replace(session, used_s=time.monotonic()))
                    raise
                session.close()
                if isinstance(error, (EOFError, OSError, self._paramiko.SSHException)):
                    self._raise_cut(error)
                raise
            idle.append(replace(session, used_s=time.monotonic()))
        finally:
            if counts:
                self._slots.release()

    def _taken(self, idle: list[_Session]) -> _Session | None:
        """One that works; None if there is none."""
        while idle:
            with suppress(Exception):  # another thread was faster, or it was cut
                session = idle.pop()
                if time.monotonic() - session.used_s > FRESH_S:
                    channel = session.sftp.get_channel()
                    channel.settimeout(self._connect_s)
                    session.sftp.normalize(".")
                    channel.settimeout(self._request_s)
                if not session.is_cut:
                    return session
        return None

    def _is_answer(self, error: BaseException) -> bool:
        return isinstance(error, OSError) and not isinstance(error, (ConnectionError, TimeoutError))

    def _raise_cut(self, error: BaseException) -> NoReturn:
        if isinstance(error, (ConnectionError, TimeoutError)):
            raise error
        raise ConnectionError(f"the connection was cut: {error}") from error

    def _opened(self) -> _Session:
        client = self._paramiko.SSHClient()
        try:
            self._connect(client)
            client.get_transport().set_keepalive(KEEPALIVE_S)
            sftp = client.open_sftp()
            sftp.get_channel().settimeout(self._request_s)
        except BaseException as error:
            told = self._refusal(error, client.get_transport())
            client.close()
            if told is error:
                raise
            raise told from error
        return _Session(client, sftp)

    def _connect(self, client: Any) -> None:
        given = dict(self._options)
        self._know_host(client, given.pop("host_key", None))
        alone = "password" in given or "key_filename" in given
        if file := given.get("key_filename"):
            given["key_filename"] = str(Path(file).expanduser())
            if not Path(given["key_filename"]).is_file():
                raise ConfigError(
                    f"{self._url}: storage_options key_filename={str(file)!r} is no file on this "
                    "node; put the key there on every node, or give a password"
                )
        client.set_missing_host_key_policy(_Unknown(self._url))
        client.connect(
            self._host, self._port, timeout=self._connect_s, banner_timeout=self._connect_s,
            auth_timeout=self._request_s, channel_timeout=self._request_s,
            allow_agent=not alone, look_for_keys=not alone, **given,
        )  # fmt: skip

    def _know_host(self, client: Any, host_key: str | None) -> None:
        if host_key is None:
            for file in KNOWN_HOSTS:
                with suppress(OSError):
                    client.load_system_host_keys(str(Path(file).expanduser()))
            return
        name = self._host if self._port == PORT else f"[{self._host}]:{self._port}"
        entry = None
        with suppress(Exception):  # each of its errors means that it is no key
            entry = self._paramiko.hostkeys.HostKeyEntry.from_line(f"{name} {host_key.strip()}")
        if entry is None:
            raise ConfigError(
                f"{self._url}: storage_options host_key is no public key of a host, such as "
                "'ssh-ed25519 AAAA…'; ssh-keyscan prints it behind the host's name"
            )
        client.get_host_keys().add(name, entry.key.get_name(), entry.key)

    def _refusal(self, error: BaseException, transport: Any) -> BaseException:
        """Why there is no session, by its builtin name."""
        paramiko = self._paramiko
        if isinstance(error, paramiko.BadHostKeyException):
            return ConfigError(
                f"{self._url}: the host has another key than the one that is known of it: it was "
                "set up anew, or another machine answers in its place. If you know which, correct "
                f"{KNOWN_HOSTS[0]} on each node, or storage_options host_key"
            )
        if isinstance(error, (ConfigError, PermissionError, TimeoutError)):
            return error
        # Besides, as that a key is none, or that there is none at all.
        is_asked_who = (
            transport is not None and transport.is_active() and transport.initial_kex_done
        ) and not transport.is_authenticated()
        is_of_keys = is_asked_who or isinstance(error, paramiko.AuthenticationException)
        is_of_paramiko = isinstance(error, (paramiko.SSHException, ValueError))
        if is_of_paramiko and is_of_keys and not _NO_ANSWER.search(str(error)):
            return PermissionError(f"failed to authenticate: {error}")
        if isinstance(error, (EOFError, OSError, paramiko.SSHException)):
            return ConnectionError(f"cannot connect: {error}")
        return error


class _Unknown:
    """What is said of a host whose key is not known. To take any would be to ask no one."""

    def __init__(self, url: str) -> None:
        self._url = url

    def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
        raise ConfigError(
            f"{self._url}: the key of this host is not known on this node, and any machine could "
            f"answer in its place: put it into {KNOWN_HOSTS[0]} of each node (ssh-keyscan prints "
            "it), or give storage_options={'host_key': 'ssh-ed25519 AAAA…'}; the key that was "
            f"offered is {key.get_name()} {key.get_base64()}"
        )
