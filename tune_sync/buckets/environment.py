"""What the environment says about buckets. Read nowhere else in `buckets`."""

from __future__ import annotations

import configparser
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tune_sync.errors import ConfigError

STORAGE_OPTIONS = "TUNE_SYNC_STORAGE_OPTIONS"


# What a profile has that leads to credentials. With none of them it is settings only, beside a role
# of the machine.
_PROFILE_CREDENTIALS = (
    "aws_access_key_id", "credential_process", "role_arn", "sso_session", "sso_start_url",
    "web_identity_token_file", "login_session",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class AwsEnvironment:
    """Settings of AWS's own tools.

    Attributes:
        endpoint_url: `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, `AWS_ENDPOINT`, which obstore alone
            would know, or that of the profile; "" for AWS itself.
        region: `AWS_REGION`, `AWS_DEFAULT_REGION`, or that of the profile.
        has_profile: Credentials come from a profile in a file, which not every library reads.
    """

    endpoint_url: str
    region: str
    has_profile: bool


def aws_environment() -> AwsEnvironment:
    """Read it now: credentials may be renewed while a process runs."""
    env = os.environ
    name = env.get("AWS_DEFAULT_PROFILE") or env.get("AWS_PROFILE") or ""
    keys_file = Path(env.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials").expanduser()
    config = _sections(Path(env.get("AWS_CONFIG_FILE") or "~/.aws/config").expanduser())
    keys = _sections(keys_file)
    profile = {**_profile(config, name or "default"), **keys.get(name or "default", {})}
    has_profile = name or keys_file.is_file() or any(map(profile.get, _PROFILE_CREDENTIALS))
    named = next(filter(None, map(env.get, _ENDPOINTS)), None)
    return AwsEnvironment(
        named or _endpoint_of(profile, config),
        env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or profile.get("region", ""),
        bool(has_profile) and not env.get("AWS_ACCESS_KEY_ID"),
    )


_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
# Where the environment has what an option may give.
_VARIABLES = {
    "key": ("AWS_ACCESS_KEY_ID",), "secret": ("AWS_SECRET_ACCESS_KEY",),
    "token": ("AWS_SESSION_TOKEN",), "endpoint_url": _ENDPOINTS,
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
}  # fmt: skip


# Ray puts the driver's into the environment of each trial: `ray.tune.execution.class_cache`.
_OF_EACH_TRIAL = (
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SECURITY_TOKEN", "AWS_SESSION_TOKEN",
)  # fmt: skip


def of_each_trial() -> dict[str, str]:
    """The credentials of this process that trials have besides their node's."""
    return {name: os.environ[name] for name in _OF_EACH_TRIAL if name in os.environ}


def aws_settings(options: Mapping[str, Any]) -> dict[str, str]:
    """The texts that count for S3, by the name of their option, or of their variable."""
    found = {}
    for option, variables in _VARIABLES.items():
        is_given = options.get("key") or options.get("anon")  # the environment's are not taken
        if options.get(option):
            found[f"storage_options {option}"] = str(options[option])
        elif not (is_given and option in ("key", "secret", "token")):
            name = next(filter(os.environ.get, variables), "")
            found |= {name: os.environ[name]} if name else {}
    return found


def _sections(path: Path) -> dict[str, dict[str, str]]:
    """What is in a file of AWS; {} if it cannot be read: the library that needs it says why."""
    parser = configparser.RawConfigParser(strict=False)
    with suppress(OSError, UnicodeDecodeError, configparser.Error):
        parser.read(path, encoding="utf-8")
    return {name: dict(parser.items(name)) for name in parser.sections()}


def _profile(config: Mapping[str, dict[str, str]], name: str) -> dict[str, str]:
    plain = config.get(name, {}) if name == "default" else {}
    return {**plain, **config.get(f"profile {name}", {})}


def _endpoint_of(profile: Mapping[str, str], config: Mapping[str, Mapping[str, str]]) -> str:
    """That of S3 in the services of a profile, else that of the profile."""
    if os.environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true":
        return ""
    services = config.get(f"services {profile.get('services')}", {})
    for line in services.get("s3", "").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "endpoint_url":
            return value.strip()
    return profile.get("endpoint_url", "")


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
    try:
        endpoint_url = urlsplit(str(options.get("endpoint_url") or env.endpoint_url))
    except ValueError:  # it is refused for that
        return ""
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
