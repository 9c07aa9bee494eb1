"""Where results go, from what users set: a directory of the driver's node, a shared one, a bucket.

Pure but for the home directory, variables and the working directory, which paths may name.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

from tune_sync.buckets.schemes import check_scheme, meant_url
from tune_sync.buckets.url import is_bucket_url, parse_bucket_url, path_of_url, redacted
from tune_sync.errors import ConfigError

# As in rsync's host:path, and none of Windows' drives.
_HOST_AND_PATH = re.compile(r"[\w.\-@]{2,}:(?!//)")
# As in RFC 8089: file:///x, file:/x and file://localhost/x are one. To fsspec local:// is the same.
_FILE_URL = re.compile(r"file:/|local://")
_OF_THIS_HOST = re.compile(r"(?:file|local)://(?:(?i:localhost)(?=/))?(?=[/~$])|file:(?=/[^/])")
_VARIABLE = re.compile(r"\$(\w+|\{\w+\})")
_NOT_EXPANDED = re.compile(r"\$(\w+|\{\w+\})|^~[^/]*")


@dataclass(frozen=True, slots=True)
class Destination:
    """A storage path.

    Attributes:
        path: What Ray calls the storage path: an absolute path, or "bucket/path".
        scheme: Of the bucket; "" for a directory.
    """

    path: str
    scheme: str = ""


def check_upload_dir(place: Any) -> bool:
    """Whether `SyncConfig.upload_dir` is a bucket.

    Raises:
        ConfigError: It is neither that nor a path.
    """
    if place is None:
        return False
    if not isinstance(place, (str, os.PathLike)) or not os.fspath(place):
        raise ConfigError(f"SyncConfig(upload_dir={place!r}): a URL or a path is needed")
    if is_bucket_url(os.fspath(place)):
        try:
            check_scheme(parse_bucket_url(os.fspath(place)).scheme)
            _refuse_variable(os.fspath(place))
        except ConfigError as error:
            raise ConfigError(f"SyncConfig(upload_dir=...): {error}") from error
        return True
    shown = redacted(place)
    if is_file_url(os.fspath(place)):
        try:
            _refuse_controls(path_of_url(_path_in_file_url(os.fspath(place))))
        except ConfigError as error:
            raise ConfigError(f"SyncConfig(upload_dir=...): {error}") from error
        return False
    _refuse_controls(os.fspath(place), "SyncConfig(upload_dir=...): ")
    if url := meant_url(os.fspath(place)):
        raise ConfigError(f"SyncConfig(upload_dir={shown!r}): is {redacted(url)} meant?")
    if _HOST_AND_PATH.match(os.fspath(place)):
        raise ConfigError(
            f"SyncConfig(upload_dir={shown!r}): neither a URL nor a path; where a command of "
            "your own reaches it, give that: syncer=CommandSyncer(...)"
        )
    return False


def _refuse_variable(url: str) -> None:
    """Nobody puts its value in: of a bucket it would be the name."""
    if found := _VARIABLE.search(url):
        raise ConfigError(
            f"{redacted(url)!r}: {found[0]} stays as it is in the URL of a bucket; give its value "
            "(os.path.expandvars), or write %24 for a $ that a name has"
        )


def _refuse_controls(path: str, given: str = "") -> None:
    if any(ord(c) < 32 or ord(c) == 127 for c in path):
        raise ConfigError(
            f"{given}{redacted(path)!r} has a newline, or a sign that cannot be seen; leave it out"
        )


def refuse_bare_path(place: Any) -> None:
    """Raise ConfigError for "bucket/path", of which a directory would be made.

    A `Path` says by itself that it is a directory.
    """
    if not isinstance(place, str) or "://" in place or is_file_url(place):
        return
    if not os.path.expandvars(place).startswith(("/", ".", "~", "$")):
        shown = redacted(place)
        raise ConfigError(
            f"SyncConfig(upload_dir={shown!r}): for a bucket write s3://{shown} (gs://, abfs://), "
            f"for a directory that all nodes see an absolute path, or ./{shown}"
        )


def resolve_destination(upload_dir: Any, storage_path: Any) -> Destination:
    """Where a new run's results go.

    Raises:
        ConfigError: The two contradict each other, or one cannot work.
    """
    if upload_dir is None:
        return Destination(resolve_storage_path(storage_path))
    found = parse_destination(upload_dir)
    if storage_path is not None and not _is_same(storage_path, found):
        raise ConfigError(
            f"storage_path={redacted(storage_path)!r} beside "
            f"upload_dir={redacted(upload_dir)!r}: results go to one place; leave storage_path out"
        )
    return found


def parse_destination(place: Any) -> Destination:
    """A URL of a bucket, or a path. Raises ConfigError if it is neither."""
    text = os.fspath(place)
    if is_bucket_url(text):
        url = parse_bucket_url(text)
        return Destination(url.path, url.scheme)
    return Destination(resolve_storage_path(text))


def resolve_storage_path(path: str | os.PathLike[str] | None) -> str:
    """A local directory, absolute: `~`, `$VARIABLES`, `file://` and relative paths resolved.

    Raises:
        ConfigError: A URL of another kind; a variable, or a user after `~`, that is not there.
    """
    if path is not None and not isinstance(path, (str, os.PathLike)):
        raise ConfigError(f"storage_path={path!r}: a path is needed")
    text = os.fspath(path) if path is not None else "~/ray_results"
    if is_file_url(text):
        # Expanded first: an escaped $ or ~ is a name, as it is to Ray when it restores.
        return os.path.abspath(path_of_url(_expanded(_path_in_file_url(text))))
    if is_bucket_url(text):
        shown = redacted(text)
        raise ConfigError(
            f"storage_path={shown!r}: a directory of the driver's node is needed, as results go "
            "there through the Ray object store; for a bucket use "
            f'SyncConfig(upload_dir="{shown}") and no storage_path'
        )
    return os.path.abspath(_expanded(text))


def is_file_url(text: str) -> bool:
    """Whether `text` is the URL of a directory."""
    return bool(_FILE_URL.match(text))


def _path_in_file_url(text: str) -> str:
    """The path in the URL of a directory, with its escapes."""
    found = _OF_THIS_HOST.match(text)
    if not found:
        raise ConfigError(
            f"{redacted(text)!r}: behind file:// a directory of this host is needed, as in "
            "file:///mnt/results; mount what is on another one, or give a command that reaches "
            "it: syncer=CommandSyncer(...)"
        )
    path = text[found.end() :]
    if "?" in path:
        raise ConfigError(f"{redacted(text)!r}: in a URL ? ends the path; write %3F for it")
    path_of_url(path)
    return path


def _expanded(text: str) -> str:
    found = os.path.expanduser(os.path.expandvars(text))
    for left in _NOT_EXPANDED.finditer(found):
        named = found[: left.end()] + found[left.end() :].partition("/")[0]
        if not os.path.lexists(named):  # else a directory is called so
            raise ConfigError(
                f"storage_path={redacted(text)!r}: there is no {left[0]} here, and results "
                "would go below a directory of that name; set it where the driver runs, or write "
                "the path out"
            )
    return found


def _is_same(storage_path: Any, found: Destination) -> bool:
    """As in a copy of a `RunConfig`, whose storage path is resolved already."""
    if found.scheme:
        text = str(storage_path)
        return text == found.path or (is_bucket_url(text) and parse_destination(text) == found)
    return resolve_storage_path(storage_path) == found.path
