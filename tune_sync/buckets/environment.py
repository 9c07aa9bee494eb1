"""What the environment says about buckets. Read nowhere else in `buckets`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tune_sync.errors import ConfigError

STORAGE_OPTIONS = "TUNE_SYNC_STORAGE_OPTIONS"


@dataclass(frozen=True, slots=True)
class AwsEnvironment:
    """Settings of AWS's own tools.

    Attributes:
        endpoint_url: `AWS_ENDPOINT_URL_S3`, or `AWS_ENDPOINT_URL`; "" for AWS itself.
        region: `AWS_REGION`, or `AWS_DEFAULT_REGION`.
        has_profile: Credentials come from a profile in a file, which not every library reads.
    """

    endpoint_url: str
    region: str
    has_profile: bool


def aws_environment() -> AwsEnvironment:
    """Read it now: credentials may be renewed while a process runs."""
    env = os.environ
    file = Path(env.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")).expanduser()
    profile = env.get("AWS_PROFILE") or file.is_file()
    return AwsEnvironment(
        env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL") or "",
        env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or "",
        bool(profile) and not env.get("AWS_ACCESS_KEY_ID"),
    )


# Each of them says where credentials are.
_AWS_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)  # fmt: skip


def missing_credentials(scheme: str, options: Mapping[str, Any]) -> str:
    """What to say if a bucket refuses a request, and nobody has given credentials; else ""."""
    is_given = options.get("key") or options.get("anon") or aws_environment().has_profile
    if scheme != "s3" or is_given or any(map(os.environ.get, _AWS_CREDENTIALS)):
        return ""
    return (
        "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
        'AWS_PROFILE, or give storage_options={"key": ..., "secret": ...}, unless this machine has '
        "a role"
    )


def asked_server(scheme: str, options: Mapping[str, Any]) -> str:
    """Which server a bucket asks, for messages; "" where its library alone knows."""
    if scheme != "s3":
        return ""
    env = aws_environment()
    endpoint_url = urlsplit(str(options.get("endpoint_url") or env.endpoint_url))
    host = endpoint_url.netloc.rpartition("@")[2]  # a password may be before it
    where = f"{endpoint_url.scheme}://{host}" if host else "Amazon, as no endpoint is given"
    return f"{where}, region {options.get('region') or env.region or 'not given'}"


def environment_options() -> dict[str, Any]:
    """`SyncConfig.storage_options` for where none are given, as in a restore: a JSON object.

    Raises:
        ConfigError: It is something else. Its text is not repeated, as it holds secrets.
    """
    text = os.environ.get(STORAGE_OPTIONS, "")
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f'{STORAGE_OPTIONS} has to be a JSON object: {{"endpoint_url": "…"}}')
    return found
