"""A second copy of `tuner.pkl`, which Ray writes once, and reads first of all when it restores.

Whether one is whole is seen from its bytes: none of it is unpickled here.
"""

from __future__ import annotations

import logging
import pickletools

from tune_sync import layout
from tune_sync.errors import DamagedError
from tune_sync.homes.home import Home
from tune_sync.homes.sites import Site
from tune_sync.layout import is_state

logger = logging.getLogger("ray.tune_sync")  # below "ray": Ray shows it on the driver

TUNER = "tuner.pkl"
COPY = f"{layout.INTERNAL_DIR}/{TUNER}"


def is_whole(data: bytes) -> bool:
    """Whether this is a pickle, of protocol 2 or later, from its first byte to its last."""
    if not data.startswith(b"\x80"):
        return False
    try:
        ends = [at for code, _, at in pickletools.genops(data) if code.name == "STOP"]
    except ValueError:  # what `pickletools` says of all that is no pickle, or not all of one
        return False
    return ends == [len(data) - 1]


def keep_copy(site: Site) -> None:
    """Keep a copy of a `tuner.pkl` that is whole. It is durable on return; may be called twice.

    Raises:
        StoreError, OSError: It cannot be written.
    """
    home = site.home("", 1)
    data = _read(home, TUNER)
    if data is not None and is_whole(data) and _read(home, COPY) != data:
        site.put(COPY, data)


def read_whole(home: Home, where: str) -> bytes:
    """`tuner.pkl`, or its copy where it is not whole, with a warning.

    Args:
        home: Of the experiment.
        where: Names it in messages.

    Raises:
        FileNotFoundError: There is none of the two, nor a state: no experiment.
        DamagedError: None of the two is whole, or there; names both.
        StoreError, OSError: They cannot be looked at.
    """
    found = _read(home, TUNER)
    if found is not None and is_whole(found):
        return found
    copy = _read(home, COPY)
    if found is None and copy is None:
        if any(is_state(entry.key) for entry in home.list("", False)):
            raise DamagedError(
                f"{where}/{TUNER} is not there, and its copy {COPY} is not either. What was "
                "started with tune.run is resumed as it was, with tune.run(..., resume=True) and "
                'run_config_kwargs(..., on_existing="resume"); else put one back, or choose '
                "another name"
            )
        raise FileNotFoundError(
            f"no experiment to restore at {where}: neither {TUNER} nor its copy {COPY} is there; "
            "is the name right?"
        )
    state = "is not there" if found is None else f"is not whole ({len(found)} bytes)"
    if copy is not None and is_whole(copy):
        logger.warning("%s/%s %s: restoring from its copy, %s", where, TUNER, state, COPY)
        return copy
    too = "is not there" if copy is None else "is not whole either"
    raise DamagedError(
        f"{where}/{TUNER} {state}, and its copy {COPY} {too}; put a whole one back, or choose "
        "another name"
    )


def put_back(site: Site) -> None:
    """Put the copy of `tuner.pkl` in its place, if that is not whole. Raises as `read_whole`."""
    home = site.home("", 1)
    data = read_whole(home, site.where)
    if _read(home, TUNER) != data:
        site.put(TUNER, data)


def _read(home: Home, key: str) -> bytes | None:
    found = home.info(key)
    return None if found is None else bytes(home.read(key, 0, found.size_bytes))
