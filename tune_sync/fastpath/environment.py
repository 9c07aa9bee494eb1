"""What the environment says to the commands. Read nowhere else in `fastpath`."""

from __future__ import annotations

import os

from tune_sync.errors import ConfigError

TOKEN = "TUNE_SYNC_TOKEN"


def token() -> bytes:
    """What both hosts have to know. Of the environment, as command lines are seen by others.

    Raises:
        ConfigError: It is not set.
    """
    found = os.environ.get(TOKEN, "")
    if not found:
        raise ConfigError(
            f"{TOKEN} is not set; set it to the same random text on both hosts, such as what "
            "`openssl rand -hex 16` prints"
        )
    return found.encode()
