"""Where a bucket is: its URL as data. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from tune_sync.errors import ConfigError

# The same store under several names.
_SAME = {
    "s3a": "s3", "s3n": "s3", "gcs": "gs", "az": "abfs", "abfss": "abfs", "adl": "abfs",
    "xroot": "root", "ssh": "sftp",
}  # fmt: skip
# So that plain `tune.Tuner.restore` takes it. Azure's is not among them: pyarrow wants the account
# in it, too.
KNOWN_TO_ARROW = ("s3", "gs", "hdfs")
_BY_FSSPEC = "fsspec+"
# XRootD writes root://host:port//path, as paths there are absolute.
_XROOTD = "root"
_SFTP = "sftp"

# Where the part before the first slash is a bucket, or a host. Others, as hdfs, may have none.
_WITH_BUCKET = ("s3", "gs", "abfs", _XROOTD, _SFTP)
_LIKE = {_XROOTD: ("host", "host:1094/"), _SFTP: ("host", "user@host:22")}

# What Ray and pyarrow read in a URL as it is; the rest is written as %20 and the like.
_PLAIN = "/-_.~=:@+&,;!'()*"
_START = re.compile(r"[A-Za-z][\w+.-]*:?//?")
_NO_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


@dataclass(frozen=True, slots=True)
class BucketUrl:
    """A root in a bucket.

    Attributes:
        scheme: "s3", "gs", "abfs", or a protocol of fsspec.
        path: "bucket/path", without a slash at either end, as the store has it: nothing in it is
            escaped. As text it is a URL.
    """

    scheme: str
    path: str

    def __str__(self) -> str:
        path = quote(self.path, safe=_PLAIN)
        return f"{self.scheme}://{path.replace('/', '//', 1) if self.scheme == _XROOTD else path}"

    @property
    def bucket(self) -> str:
        """The part before the first slash."""
        return self.path.partition("/")[0]

    @property
    def prefix(self) -> str:
        """The part after it."""
        return self.path.partition("/")[2]


def is_bucket_url(text: str) -> bool:
    """Whether `text` is the URL of something else than a directory."""
    scheme, mark, _ = text.partition("://")
    return bool(mark) and len(scheme) > 1 and scheme not in ("file", "local")


def redacted(text: object) -> str:
    """A URL, or what may have been meant as one, for messages: without what may be secret in it."""
    shown = str(text)
    start = _START.match(shown)
    scheme = start[0] if start else ""
    user, _, rest = shown.removeprefix(scheme).rpartition("@")
    if ":" in user:
        shown = f"{scheme}…@{rest}"
    shown, mark, _ = shown.partition("?")
    return f"{shown}?…" if mark else shown


def path_of_url(text: str) -> str:
    """The path that a part of a URL stands for.

    Raises:
        ConfigError: It has a sign that means something else in a URL, or is no UTF-8.
    """
    if _NO_ESCAPE.search(text) or "#" in text:
        raise ConfigError(
            f"{text!r}: in a URL % begins an escape and # ends the path; write %25 and %23 for them"
        )
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{text!r}: its escapes are no UTF-8") from error


def parse_bucket_url(text: str) -> BucketUrl:
    """Read a URL. Escapes such as %20 stand for what they do in every URL.

    Raises:
        ConfigError: It has no scheme or no bucket, or it has a query.
    """
    scheme, _, path = text.partition("://")
    shown = redacted(text)
    given, scheme, path = path, _known_scheme(scheme), path.strip("/")
    _refuse_secrets(scheme, path)  # first: what else is wrong is told with the whole of it
    if text != text.strip():
        raise ConfigError(
            f"{shown!r}: there is a blank before or behind the URL; leave it out, or write %20 for "
            "one that a name has"
        )
    if given.startswith("/") and scheme in _WITH_BUCKET:
        missing, like = _LIKE.get(scheme, ("bucket", "bucket"))
        raise ConfigError(
            f"{shown!r}: there is no {missing} behind {scheme}://; write {scheme}://{like}/{path}"
        )
    if scheme == _XROOTD:
        path = path.replace("//", "/", 1)
        if "/" not in path:
            raise ConfigError(f"{shown!r}: a URL such as root://host:1094//path is needed")
    if scheme == _SFTP and "/" not in path:
        raise ConfigError(f"{shown!r}: a URL such as sftp://user@host:22/path is needed")
    if not is_bucket_url(text) or not path:
        raise ConfigError(f"{shown!r}: a URL such as s3://bucket/path is needed")
    bucket, _, prefix = path.partition("/")
    if "@" in bucket and scheme != _SFTP:
        container, _, host = bucket.partition("@")
        account = host.partition(".")[0]
        raise ConfigError(
            f'{shown!r}: write upload_dir="abfs://{container}/{prefix}" and '
            f'storage_options={{"account_name": "{account}"}}, or set '
            f"AZURE_STORAGE_ACCOUNT_NAME={account}"
        )
    path = path_of_url(path)
    if any(ord(c) < 32 or ord(c) == 127 or c == "\\" for c in path):
        raise ConfigError(f"{shown!r}: control characters and backslashes cannot be in the path")
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise ConfigError(f"{shown!r}: empty parts, '.' and '..' cannot be part of the path")
    return BucketUrl(scheme, path)


def _refuse_secrets(scheme: str, path: str) -> None:
    bucket = path.partition("/")[0]
    # container@account, or user@host; escapes could hide a colon.
    named = bucket if scheme == "abfs" else bucket.rpartition("@")[0]
    is_name = scheme in ("abfs", _SFTP) and not set(named) & set(":%")
    if "?" in path or ("@" in bucket and not is_name):
        raise ConfigError(
            f"{scheme}://…: settings and secrets do not belong into the URL, which is stored; use "
            "storage_options, or the environment (AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID, …). "
            "A ? in a name is written %3F"
        )


def _known_scheme(text: str) -> str:
    scheme = text.removeprefix(_BY_FSSPEC)
    return _SAME.get(scheme, scheme)
