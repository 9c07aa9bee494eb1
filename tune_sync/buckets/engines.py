"""Makes the client of a bucket: picks the library, and sets its time limits.

obstore is taken where it is installed: it knows conditional puts, its memory is bounded, and it
is the fastest with many small files and with downloads. pyarrow is always there, and reads the
profiles of AWS. Everything else goes through fsspec.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pyarrow.fs as pafs

from tune_sync.buckets.answers import Client
from tune_sync.buckets.arrow_bucket import ArrowBucket
from tune_sync.buckets.environment import aws_environment
from tune_sync.buckets.fsspec_bucket import FsspecBucket
from tune_sync.buckets.obstore_bucket import ObstoreBucket
from tune_sync.buckets.options import check_s3, is_address, timeouts
from tune_sync.buckets.schemes import IN_ONE_PROCESS, check_scheme, package_of
from tune_sync.buckets.sftp_bucket import SftpBucket
from tune_sync.buckets.sftp_sessions import SftpSessions
from tune_sync.buckets.url import BucketUrl, redacted
from tune_sync.buckets.xrootd_bucket import XrootdBucket
from tune_sync.errors import ConfigError

# A part of a stream is tried again at most so long.
PART_RETRY_S = 120

ENGINES = ("obstore", "pyarrow", "fsspec")
# Of all buckets. How often a request is tried is said to who wraps a client: see `opening`.
OWN_OPTIONS = ("request_timeout_s", "connect_timeout_s", "engine", "tries_count")
S3_OPTIONS = (
    "key", "secret", "token", "endpoint_url", "region", "anon", "sign_payload", *OWN_OPTIONS,
)  # fmt: skip

SFTP_OPTIONS = ("username", "password", "key_filename", "passphrase", "host_key")

# The first part of these URLs is a host, and what follows is a path on it.
_HOSTED = ("hdfs", "webhdfs", "smb")

# The runtime of obstore does not live on in a forked process, and calls then wait for ever.
_obstore_pid = 0


def make_client(url: BucketUrl, options: Mapping[str, Any]) -> Client:
    """A client for `url`, made now.

    Args:
        url: The root.
        options: `SyncConfig.storage_options`.

    Raises:
        ConfigError: A library or an option is missing or unknown.
    """
    engine = options.get("engine", ENGINES[0])
    if engine not in ENGINES:
        raise ConfigError(f"storage_options engine={engine!r}: known are {', '.join(ENGINES)}")
    timeouts(options)
    if url.scheme == "s3":
        return _s3(url, options)
    if url.scheme in ("gs", "abfs") and _may_use_obstore(options):
        by_version = url.scheme == "gs"
        return ObstoreBucket(
            lambda retries: _obstore_store(url, options, retries), by_version=by_version
        )
    if url.scheme == "sftp":
        return _sftp(url, options)
    return _xrootd(url, options) if url.scheme == "root" else _fsspec(url, options)


def _check_names(
    url: BucketUrl, options: Mapping[str, Any], known: Sequence[str], besides: str = ""
) -> None:
    if unknown := sorted(set(options).difference(known)):
        raise ConfigError(
            f"storage_options {', '.join(unknown)} of {url}: known are {', '.join(known)}{besides}"
        )


def _sftp(url: BucketUrl, options: Mapping[str, Any]) -> Client:
    _check_names(url, options, (*SFTP_OPTIONS, *OWN_OPTIONS))
    given = {name: options[name] for name in SFTP_OPTIONS if options.get(name) is not None}
    wrong = [name for name, value in given.items() if not isinstance(value, str) or not value]
    if wrong:
        raise ConfigError(f"storage_options {', '.join(wrong)} of {url}: strings are needed")
    if not is_address(f"{url.scheme}://{url.bucket}"):
        raise ConfigError(f"{url}: there is no host in it, or a port that is no number")
    if not _is_installed("paramiko"):
        raise ConfigError(_no_library(url, f"pip install {package_of(url.scheme)}"))
    parts = urlsplit(f"{url.scheme}://{url.bucket}")
    if parts.username and given.setdefault("username", parts.username) != parts.username:
        raise ConfigError(f"{url}: storage_options username is another; leave one of them out")
    sessions = SftpSessions(
        str(url), parts.hostname or "", parts.port or 0, given, *timeouts(options)
    )
    return SftpBucket(str(url), sessions, f"/{url.prefix}")


def _xrootd(url: BucketUrl, options: Mapping[str, Any]) -> Client:
    _check_names(url, options, OWN_OPTIONS, "; XRootD takes credentials from the environment")
    if not _is_installed("XRootD"):
        raise ConfigError(_no_library(url, f"pip install {package_of(url.scheme)}"))
    return XrootdBucket(url.bucket, f"/{url.prefix}", timeouts(options)[0])


def _s3(url: BucketUrl, options: Mapping[str, Any]) -> Client:
    _check_names(url, options, S3_OPTIONS)
    texts = ("key", "secret", "token", "endpoint_url", "region")
    wrong = [name for name in texts if not isinstance(options.get(name) or "", str)]
    if wrong:
        raise ConfigError(f"storage_options {', '.join(wrong)} of {url}: strings are needed")
    _check_keys(url, options)
    check_s3(options)
    endpoint_url = options.get("endpoint_url") or aws_environment().endpoint_url
    if endpoint_url and not re.match(r"https?://\S", str(endpoint_url)):
        raise ConfigError(
            f"the endpoint of {url} is {redacted(endpoint_url)!r}: it needs http:// or https://; "
            "correct storage_options endpoint_url, or AWS_ENDPOINT_URL"
        )
    if endpoint_url and not is_address(endpoint_url):
        raise ConfigError(
            f"the endpoint of {url} has no host, or a port that is no number: correct "
            "storage_options endpoint_url, or AWS_ENDPOINT_URL"
        )
    parts = urlsplit(str(endpoint_url))
    if "@" in parts.netloc or parts.query:  # libraries repeat them in what they raise
        raise ConfigError(
            f"the endpoint of {url} has a user or a query, which no store asks for: give secrets "
            "as storage_options key, secret and token, or in the environment"
        )
    if options.get("engine") == "fsspec":
        return _fsspec(url, _s3fs_options(options))
    # obstore reads no profiles, but can ask boto3; pyarrow reads them itself.
    profile = aws_environment().has_profile and not options.get("key")
    obstore_reads = not profile or _is_installed("boto3")
    if obstore_reads and _may_use_obstore(options):
        return ObstoreBucket(lambda retries: _obstore_s3(url, options, profile, retries))
    has_larger = _is_installed("s3fs") or (obstore_reads and _is_installed("obstore"))
    return ArrowBucket(
        lambda retries: _arrow_s3(url, options, retries), url.path,
        (lambda: _s3_larger(url, options, profile)) if has_larger else None,
    )  # fmt: skip


def _check_keys(url: BucketUrl, options: Mapping[str, Any]) -> None:
    """Half of what is given and half of the environment's are never one set of credentials."""
    given = [name for name in ("key", "secret", "token") if options.get(name)]
    missing = [name for name in ("key", "secret") if name not in given]
    if given and missing:
        raise ConfigError(
            f"storage_options of {url} have {' and '.join(given)} without {' and '.join(missing)}: "
            "give both key and secret, or none of the three, to take those of the environment"
        )


def _s3_larger(url: BucketUrl, options: Mapping[str, Any], profile: bool) -> Client:
    """For an object that needs larger parts than pyarrow's: another library, for it alone."""
    others = {name: value for name, value in options.items() if name != "engine"}
    if (not profile or _is_installed("boto3")) and _may_use_obstore(others):
        return ObstoreBucket(lambda retries: _obstore_s3(url, others, profile, retries))
    if not _is_installed("s3fs"):
        raise ConfigError(
            f"{url}: obstore, which a file of this size needs, does not work in a forked process: "
            "pip install s3fs, or report it from a process that was not forked"
        )
    return _fsspec(url, _s3fs_options(others))


def _is_installed(library: str) -> bool:
    return importlib.util.find_spec(library) is not None


def _may_use_obstore(options: Mapping[str, Any]) -> bool:
    global _obstore_pid
    wanted = options.get("engine", "obstore") == "obstore"
    if wanted and "engine" in options and not _is_installed("obstore"):
        raise ConfigError('engine "obstore" is not installed: pip install obstore')
    if not wanted or not _is_installed("obstore"):
        return False
    _obstore_pid = _obstore_pid or os.getpid()
    return _obstore_pid == os.getpid()


def _obstore_settings(options: Mapping[str, Any], retries_count: int) -> dict[str, Any]:
    request_s, connect_s = timeouts(options)
    return {
        "client_options": {
            "allow_http": True, "timeout": timedelta(seconds=request_s),
            "connect_timeout": timedelta(seconds=connect_s),
        },
        "retry_config": {
            "max_retries": retries_count, "retry_timeout": timedelta(seconds=PART_RETRY_S),
            # Its own, which start at 0.1 s, make ten tries within four seconds.
            "backoff": {
                "init_backoff": timedelta(seconds=0.5), "max_backoff": timedelta(seconds=10),
                "base": 3.0,
            },
        },
    }  # fmt: skip


def _profile_credentials() -> Any:
    return importlib.import_module("obstore.auth.boto3").Boto3CredentialProvider()


def _obstore_class(name: str) -> Any:
    return getattr(importlib.import_module("obstore.store"), name)


def _is_encrypted(options: Mapping[str, Any]) -> bool:
    """Whether TLS refuses what was changed on its way: a digest of all bytes would tell no more."""
    return not (options.get("endpoint_url") or aws_environment().endpoint_url).startswith("http:")


def _fixed(**credentials: str | None) -> Callable[[], dict[str, Any]]:
    """Credentials that were given, for obstore: to those it is given otherwise it adds others.

    Those of the environment, such as a token that belongs to another key.
    """
    return lambda: {**credentials, "expires_at": None}


def _obstore_s3(
    url: BucketUrl, options: Mapping[str, Any], profile: bool, retries_count: int
) -> Any:
    env = aws_environment()
    signs = options.get("sign_payload", not _is_encrypted(options))
    endpoint_url = options.get("endpoint_url") or env.endpoint_url
    key, provider = options.get("key"), _profile_credentials() if profile else None
    if key:
        secret, token = options.get("secret"), options.get("token") or None
        provider = _fixed(access_key_id=key, secret_access_key=secret, token=token)
    wanted = {
        "endpoint": endpoint_url,
        # Else that of the environment counts.
        "aws_endpoint_url_s3": endpoint_url,
        "region": options.get("region") or env.region or "us-east-1",
        # The digest that was signed, once more: not every store compares the first with the bytes.
        "checksum_algorithm": "SHA256" if signs else None,
        "credential_provider": provider,
        "conditional_put": "etag",
    }
    given: dict[str, Any] = {name: value for name, value in wanted.items() if value}
    given["unsigned_payload"] = not signs
    if key or options.get("anon") is not None:
        given["skip_signature"] = bool(options.get("anon"))
    given |= _obstore_settings(options, retries_count)
    s3 = _obstore_class("S3Store")
    try:
        return s3(url.bucket, prefix=url.prefix or None, **given)
    except Exception as error:
        if type(error).__name__ != "UnknownConfigurationKeyError" or not endpoint_url:
            raise
        del given["aws_endpoint_url_s3"]  # an obstore that does not read it from there, either
        return s3(url.bucket, prefix=url.prefix or None, **given)


# Which of them is given decides; the first that is in the environment would, whatever is given.
_AZURE_CREDENTIALS = {
    "access_key": ("account_key", "access_key", "master_key"),
    "sas_token": ("sas_token", "sas_key"),
    "token": ("bearer_token", "token"),
}


def _azure_credentials(given: dict[str, Any]) -> dict[str, Any]:
    """The same settings, with credentials among them as such that nothing is added to."""
    for kind, names in _AZURE_CREDENTIALS.items():
        for name in (*names, *(f"azure_storage_{name}" for name in names)):
            if isinstance(given.get(name), str) and given[name]:
                rest = {other: value for other, value in given.items() if other != name}
                provider = _fixed(**{kind: given[name]})
                return {"skip_signature": False, "credential_provider": provider, **rest}
    return given


def _obstore_store(url: BucketUrl, options: Mapping[str, Any], retries_count: int) -> Any:
    given = {name: value for name, value in options.items() if name not in OWN_OPTIONS}
    if url.scheme == "abfs":
        given = _azure_credentials(given)
    kind = _obstore_class("GCSStore" if url.scheme == "gs" else "AzureStore")
    settings = _obstore_settings(options, retries_count)
    return kind(url.bucket, prefix=url.prefix or None, **given, **settings)


def _arrow_s3(url: BucketUrl, options: Mapping[str, Any], retries_count: int) -> pafs.FileSystem:
    env = aws_environment()
    request_s, connect_s = timeouts(options)
    wanted = {
        "endpoint_override": options.get("endpoint_url") or env.endpoint_url,
        "region": options.get("region") or env.region,
        "access_key": options.get("key"),
        "secret_key": options.get("secret"),
        "session_token": options.get("token"),
        "anonymous": options.get("anon"),
    }
    given = {name: value for name, value in wanted.items() if value}
    try:
        s3 = pafs.S3FileSystem
    except ImportError as error:
        raise ConfigError(
            f"{url}: this pyarrow cannot reach s3:// ({error}): pip install obstore; "
            'or pip install s3fs, with storage_options={"engine": "fsspec"}'
        ) from error
    retry = pafs.AwsStandardS3RetryStrategy(max_attempts=1 + retries_count)
    given |= {
        "request_timeout": request_s, "connect_timeout": connect_s, "retry_strategy": retry,
        # What it writes in the background it first keeps: a whole file, if the store is slow.
        "background_writes": False,
    }  # fmt: skip
    try:
        # Small objects in one request, which leaves no open upload behind when its answer is lost.
        return s3(**given, allow_delayed_open=True)
    except TypeError:  # a pyarrow that does not know it
        return s3(**given)


def _s3fs_options(options: Mapping[str, Any]) -> dict[str, Any]:
    env = aws_environment()
    request_s, connect_s = timeouts(options)
    region, endpoint_url = options.get("region") or env.region, env.endpoint_url
    given = {"endpoint_url": endpoint_url} if endpoint_url else {}
    given |= {name: v for name, v in options.items() if name not in ("region", "sign_payload")}
    return {
        **given, "client_kwargs": {"region_name": region} if region else {},
        "config_kwargs": {"connect_timeout": connect_s, "read_timeout": request_s},
    }  # fmt: skip


def _fsspec(url: BucketUrl, options: Mapping[str, Any]) -> Client:
    import fsspec.core

    if url.scheme != IN_ONE_PROCESS:  # a run is refused before; who asks in one process may use it
        check_scheme(url.scheme)
    given = {name: value for name, value in options.items() if name not in OWN_OPTIONS}
    try:
        fsspec.get_filesystem_class(url.scheme)
    except ImportError as error:
        # Who asked for fsspec gets its own hint.
        packages = "" if options.get("engine") == "fsspec" else package_of(url.scheme)
        hint = f"pip install {packages}" if packages else str(error)
        raise ConfigError(_no_library(url, hint)) from error

    hosted = url.scheme in _HOSTED
    in_directories = hosted or url.scheme in ("memory", "file")

    def make() -> Any:
        # What another process wrote has to be seen: no listings are kept, no instance is shared.
        # Only one that lives in memory is nothing but what is kept.
        apart = {} if url.scheme == "memory" else {"skip_instance_cache": True}
        apart["use_listings_cache"] = False
        try:
            if hosted:  # the library reads host, port and user out of the URL
                return fsspec.core.url_to_fs(f"{url.scheme}://{url.bucket}/", **apart, **given)[0]
            return fsspec.filesystem(url.scheme, **apart, **given)
        except (ImportError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{url}: fsspec's {url.scheme}:// cannot be opened with these storage_options: "
                f"{error}"
            ) from error

    root = f"/{url.prefix if hosted else url.path}" if in_directories else url.path
    return FsspecBucket(make, root, makes_dirs=in_directories)


def _no_library(url: BucketUrl, hint: str) -> str:
    return f"{url}: no library for {url.scheme}:// is installed: {hint}"
