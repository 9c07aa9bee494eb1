"""A server of the plain SFTP protocol: it has no `fsync`, and a rename that replaces if asked.

To be imported in tests alone, not at the top of files: paramiko is not in the lowest environment.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import paramiko

USER = "somebody"


@dataclass
class PlainServer:
    """A running server.

    Attributes:
        url: What is below it may be read and written.
        password: What lets `USER` in.
        replaces: Whether it has a rename that replaces.
        key: Its own.
        asked: The writes, syncs and renames it was asked for, in order.
    """

    url: str
    password: str
    replaces: bool
    key: Any
    asked: list[str] = field(default_factory=list)

    @property
    def options(self) -> dict[str, Any]:
        """As `storage_options`."""
        host_key = f"{self.key.get_name()} {self.key.get_base64()}"
        return {"host_key": host_key, "password": self.password}


class Login(paramiko.ServerInterface):  # type: ignore[misc]
    def __init__(self, server: PlainServer) -> None:
        self.server = server

    def check_auth_password(self, username: str, password: str) -> int:
        is_right = (username, password) == (USER, self.server.password)
        return int(paramiko.AUTH_SUCCESSFUL if is_right else paramiko.AUTH_FAILED)

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return int(paramiko.OPEN_SUCCEEDED)


def answered(call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        found = call(*arguments)
    except OSError as error:
        return paramiko.SFTPServer.convert_errno(error.errno)
    return paramiko.SFTP_OK if found is None else found


class Opened(paramiko.SFTPHandle):  # type: ignore[misc]
    def stat(self) -> Any:
        return paramiko.SFTPAttributes.from_stat(os.fstat(self.readfile.fileno()))


class Files(paramiko.SFTPServerInterface):  # type: ignore[misc]
    def __init__(self, login: Login) -> None:
        self.server = login.server

    def list_folder(self, path: str) -> Any:
        def entry(found: os.DirEntry[str]) -> Any:
            return paramiko.SFTPAttributes.from_stat(found.stat(), found.name)

        return answered(lambda: [entry(found) for found in os.scandir(path)])

    def stat(self, path: str) -> Any:
        return answered(lambda: paramiko.SFTPAttributes.from_stat(os.stat(path)))

    def open(self, path: str, flags: int, attr: Any) -> Any:
        def opened() -> Any:
            descriptor, made = os.open(path, flags, 0o600), Opened()
            made.readfile = made.writefile = os.fdopen(descriptor, "wb" if flags & 1 else "rb")
            return made

        return answered(opened)

    def remove(self, path: str) -> Any:
        return answered(os.remove, path)

    def mkdir(self, path: str, attr: Any) -> Any:
        return answered(os.mkdir, path)

    def rmdir(self, path: str) -> Any:
        return answered(os.rmdir, path)

    def posix_rename(self, oldpath: str, newpath: str) -> Any:
        self.server.asked.append("rename")
        if not self.server.replaces:
            return paramiko.SFTP_OP_UNSUPPORTED
        return answered(os.replace, oldpath, newpath)


class Protocol(paramiko.SFTPServer):  # type: ignore[misc]
    def _process(self, t: int, request_number: int, msg: Any) -> None:
        if t == paramiko.sftp.CMD_WRITE:
            self.server.server.asked.append("write")
        elif t == paramiko.sftp.CMD_EXTENDED and b"fsync@openssh.com" in msg.asbytes():
            self.server.server.asked.append("fsync")
        super()._process(t, request_number, msg)


@contextmanager
def plain_sftp(directory: Path, password: str, *, replaces: bool) -> Iterator[PlainServer]:
    """Run a server as long as the block.

    Args:
        directory: What it serves.
        password: What lets `USER` in.
        replaces: Whether it has a rename that replaces.
    """
    transports: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"sftp://{USER}@127.0.0.1:{listening.getsockname()[1]}{directory}"
        running = PlainServer(url, password, replaces, paramiko.RSAKey.generate(2048))

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:  # it is shut down
                    return
                transports.append(paramiko.Transport(connection))
                transports[-1].add_server_key(running.key)
                transports[-1].set_subsystem_handler("sftp", Protocol, Files)
                transports[-1].start_server(event=threading.Event(), server=Login(running))

        accepting = threading.Thread(target=serve, daemon=True)
        accepting.start()
        try:
            yield running
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for transport in transports:
                transport.close()
