"""A profile of AWS's own files counts with each library, and with it its region and endpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.test_bucket_credentials import ENGINES, GIVEN, Asked, asked, home, put
from tune_sync.buckets.environment import aws_environment

__all__ = ["asked", "home"]

# What boto3 and the others read of a process that is run for its credentials.
PROCESS = (
    'credential_process = echo \'{"Version": 1, "AccessKeyId": "P", "SecretAccessKey": "s"}\'\n'
)


@pytest.mark.parametrize("where", ["default", "AWS_CONFIG_FILE", "AWS_PROFILE"])
@pytest.mark.parametrize("lines", ["aws_access_key_id = P\naws_secret_access_key = s\n", PROCESS])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_profile_in_the_configuration_signs_for_its_region(
    home: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch, engine: str, lines: str, where: str
) -> None:
    file = home / ("elsewhere" if where == "AWS_CONFIG_FILE" else ".aws/config")
    if where != "default":
        monkeypatch.setenv(where, str(file) if where == "AWS_CONFIG_FILE" else "team")
    section = "profile team" if where == "AWS_PROFILE" else "default"
    file.write_text(f"[{section}]\nregion = eu-north-1\n{lines}")
    put(engine=engine, endpoint_url=asked.url)
    assert asked.signed == ("P", "eu-north-1")


@pytest.mark.parametrize("engine", ENGINES)
def test_credentials_in_one_file_go_with_the_region_in_the_other(
    home: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    (home / ".aws/config").write_text("[default]\nregion = eu-north-1\n")
    keys = home / "keys"
    keys.write_text("[default]\naws_access_key_id = F\naws_secret_access_key = s\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))
    put(engine=engine, endpoint_url=asked.url)
    assert asked.signed == ("F", "eu-north-1")
    monkeypatch.setenv("AWS_REGION", "of-the-environment")
    put(engine=engine, endpoint_url=asked.url)
    assert asked.signed == ("F", "of-the-environment")


def test_a_default_profile_without_credentials_leaves_the_role_of_the_machine(home: Path) -> None:
    (home / ".aws/config").write_text("[default]\nregion = eu-north-1\noutput = json\n")
    found = aws_environment()
    assert (found.region, found.has_profile) == ("eu-north-1", False)


@pytest.mark.parametrize(
    "lines",
    [
        "endpoint_url = {}",
        "endpoint_url = http://n\nservices = s\n[services s]\ns3 =\n  endpoint_url = {}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("engine", ENGINES)
def test_a_profile_may_name_the_endpoint(
    home: Path, asked: Asked, monkeypatch: pytest.MonkeyPatch, engine: str, lines: str
) -> None:
    (home / ".aws/config").write_text(f"[default]\n{lines.format(asked.url)}\n")
    put(engine=engine, **GIVEN)
    assert asked.signed[0] == "GIVEN"
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    assert aws_environment().endpoint_url == ""


@pytest.mark.parametrize("text", ["no section\n", "[default\nregion = x", "[default]\n[default]\n"])
def test_a_configuration_that_cannot_be_read_is_left_to_the_library(home: Path, text: str) -> None:
    (home / ".aws/config").write_text(text)
    assert not aws_environment().has_profile
