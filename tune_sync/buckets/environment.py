"""What the environment says about buckets. Read nowhere else in `buckets`."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
