"""Where the contenders of `buckets` work: one endpoint, a prefix for each. No Ray in here."""

from __future__ import annotations

import os
from typing import Any

BUCKET = "bench"
KEY = "key"
REGION = "us-east-1"


def set_environment(endpoint: str) -> None:
    """What clients look for: also processes that this one starts have it."""
    os.environ.update(
        AWS_ACCESS_KEY_ID=KEY,
        AWS_SECRET_ACCESS_KEY=KEY,
        AWS_REGION=REGION,
        AWS_ENDPOINT_URL=endpoint,
        AWS_EC2_METADATA_DISABLED="true",
        RAY_USAGE_STATS_ENABLED="0",
        RAY_AIR_NEW_OUTPUT="0",
        TUNE_DISABLE_AUTO_CALLBACK_LOGGERS="0",
    )


def our_options(endpoint: str) -> dict[str, Any]:
    """`storage_options` of tune_sync: as it would be over TLS, which the sink does not speak."""
    return {"endpoint_url": endpoint, "key": KEY, "secret": KEY, "sign_payload": False}


def ray_uri(endpoint: str, prefix: str) -> str:
    """Ray's own `storage_path`."""
    host = endpoint.removeprefix("http://")
    return f"s3://{BUCKET}/{prefix}?endpoint_override={host}&scheme=http&region={REGION}"
