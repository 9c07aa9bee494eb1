"""Which experiment a directory holds: the run that began it is noted in it.

Another one may have had the same place before, with trials of the same names: it was moved aside,
or deleted. What nodes had staged for that one is not for this.
"""

from __future__ import annotations

import json

from tune_sync import layout
from tune_sync.homes.home import Home
from tune_sync.homes.sites import Site


def note_begun(site: Site, owner: str) -> str:
    """Note that a run begins the experiment; returns that run. Durable on return.

    Raises:
        StoreError, OSError: It cannot be written.
    """
    site.put(layout.EXPERIMENT_KEY, json.dumps({"format_version": 1, "begun_by": owner}).encode())
    return owner


def begun_by(home: Home) -> str:
    """The run that began the experiment; "" if an older version did, or nobody can tell.

    Raises:
        StoreError, OSError: It could not be looked at.
    """
    found = home.info(layout.EXPERIMENT_KEY)
    if found is None:
        return ""
    data = bytes(home.read(layout.EXPERIMENT_KEY, 0, found.size_bytes))
    try:
        return str(json.loads(data)["begun_by"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
