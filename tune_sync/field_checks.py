"""Checks of the fields of settings; their errors name the field."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar

from tune_sync.errors import ConfigError, UnknownFieldError

_T = TypeVar("_T")

# Fields of Ray's that only raise an error, of Ray's or of ours: nobody is told to use them.
_REFUSED = ("local_dir", "storage_filesystem")

# The fields of each class of settings that is loaded, and where one of its fields is given.
_FIELDS: dict[str, list[str]] = {}
_GIVEN_IN = {
    "FailureConfig": "RunConfig(failure_config=tune.FailureConfig({}))",
    "CheckpointConfig": "RunConfig(checkpoint_config=tune.CheckpointConfig({}))",
    "RunConfig": "RunConfig({})",
    "SyncConfig": "RunConfig(sync_config=SyncConfig({}))",
    "FastPath": "SyncConfig(fast_path=FastPath({}))",
}

# Fields of RunConfig that are objects of Ray's: what Ray calls or reads of each, which tells them
# in all versions, as ray.tune's, ray.train's and ray.air's classes are not related in all of them;
# and the class to use.
_OBJECTS = {
    "failure_config": ("max_failures", "FailureConfig"),
    "checkpoint_config": ("num_to_keep", "CheckpointConfig"),
    "progress_reporter": ("report", "ProgressReporter"),
}


def names_its_fields(kind: type[_T]) -> type[_T]:
    """Have a dataclass tell its fields where it is given one that it has not.

    For above `@dataclass`. A subclass that is a dataclass too has an `__init__` of its own.
    """
    known = [each.name for each in fields(kind) if each.init]  # type: ignore[arg-type]
    make: Callable[..., None] = kind.__init__
    _FIELDS[kind.__name__] = [name for name in known if name not in _REFUSED]

    @wraps(make)
    def told(self: Any, *values: Any, **named: Any) -> None:
        if unknown := [name for name in named if name not in known]:
            raise UnknownFieldError(_unknown(kind.__name__, unknown))
        make(self, *values, **named)

    kind.__init__ = told  # type: ignore[method-assign]
    return kind


def _unknown(kind: str, unknown: Sequence[str]) -> str:
    """No value is shown: it may be a secret."""
    given = ", ".join(f"{name}=..." for name in unknown)
    start = f"{kind}({given}): no such field"
    if elsewhere := _elsewhere(unknown):
        return f"{start}; {elsewhere}"
    known = _FIELDS[kind]
    close = {near: None for name in unknown for near in get_close_matches(name, known, 1)}
    meant = f"did you mean {', '.join(close)}? Its" if close else "its"
    return f"{start}; {meant} fields are {', '.join(known)}"


def _elsewhere(unknown: Sequence[str]) -> str:
    """Of which classes these are fields, and where those are given; "" if one is of none."""
    classes, found = _FIELDS | _fields_of_ray(), dict[str, list[str]]()
    for name in unknown:
        kind = next((each for each, names in classes.items() if name in names), "")
        found.setdefault(kind, []).append(name)
    if "" in found:
        return ""
    told = []
    for kind, names in found.items():
        is_one = len(names) == 1
        they = " and ".join(names) if len(found) > 1 else "it" if is_one else "they"
        given = ", ".join(f"{name}=..." for name in names)
        fields_of = f"{'is a field' if is_one else 'are fields'} of {kind}"
        told.append(f"{they} {fields_of}: {_GIVEN_IN[kind].format(given)}")
    return "; ".join(told)


def _fields_of_ray() -> dict[str, list[str]]:
    """Those of Ray's classes, which are loaded where one of ours is that takes them."""
    kinds = {
        kind: getattr(sys.modules.get("ray.tune"), kind, None) for _, kind in _OBJECTS.values()
    }
    return {
        name: [each.name for each in fields(kind) if not each.name.startswith("_")]
        for name, kind in kinds.items() if is_dataclass(kind)
    }  # fmt: skip


def check_run_fields(config: Any) -> None:
    """Raise ConfigError if a field of a RunConfig is of a wrong type.

    What is empty of an object of Ray's is replaced by Ray's default.
    """
    for name, value in vars(config).items():
        if name != "sync_config" and hasattr(value, "sync_artifacts"):
            raise ConfigError(
                f"RunConfig({name}=SyncConfig(...)): sync_config= is missing before it: "
                "RunConfig(sync_config=SyncConfig(...))"
            )
    if not isinstance(config.overwrite, bool):
        raise ConfigError(f"RunConfig(overwrite={config.overwrite!r}): True or False is needed")
    if config.name is not None and not isinstance(config.name, str):
        raise ConfigError(f"RunConfig(name={config.name!r}): a string is needed")
    if config.name and {"", ".", ".."} & set(config.name.split("/")):
        raise ConfigError(
            f"RunConfig(name={config.name!r}) does not stay inside its directory: a name without "
            "'.' and '..', and without a / at its begin or end, is needed"
        )
    if not isinstance(config.callbacks, (list, tuple, type(None))):
        raise ConfigError(f"RunConfig(callbacks={config.callbacks!r}): a list is needed")
    for name, (attribute, kind) in _OBJECTS.items():
        value = getattr(config, name)
        if value and (isinstance(value, type) or not hasattr(value, attribute)):
            is_named = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
            given = ", ".join(f"{k}={v!r}" for k, v in value.items()) if is_named else "..."
            raise ConfigError(
                f"RunConfig({name}={value!r}): an object of Ray's is needed: "
                f"ray.tune.{kind}({given})"
            )


def check_seconds(name: str, value: Any, most: float) -> None:
    """Raise ConfigError if it is no time above zero, up to `most`."""
    is_path = isinstance(value, (str, os.PathLike)) and "/" in str(value)
    if name == "sync_period" and is_path:  # Ray's, up to 2.6, had the place here
        raise ConfigError(
            "SyncConfig(...): the first value is sync_period, and no place; if a place is meant, "
            "name it: SyncConfig(upload_dir=...)"
        )
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise ConfigError(f"SyncConfig({name}={value!r}): a number of seconds above zero is needed")
    if value > most:
        raise ConfigError(f"SyncConfig({name}={value!r}): give {most:.0f} seconds at most")


def check_flag(name: str, value: Any) -> None:
    """Raise ConfigError if it is neither True nor False."""
    if not isinstance(value, bool):
        raise ConfigError(f"SyncConfig({name}={value!r}): True or False is needed")


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Raise ConfigError if it is none of these."""
    if value not in choices:
        shown = " or ".join(f'"{choice}"' for choice in choices)
        raise ConfigError(f"SyncConfig({name}={value!r}): {shown} is needed")


def check_count(name: str, value: Any, what: str) -> None:
    """Raise ConfigError if it is given, and no whole number above zero."""
    if value is not None:
        check_above_zero(f"SyncConfig({name}={value!r})", value, what)


def check_above_zero(given: str, value: Any, what: str) -> None:
    """Raise ConfigError, which begins with what was given, if it is no whole number above zero."""
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise ConfigError(f"{given}: {what} above zero is needed")


def check_patterns(name: str, value: Any) -> tuple[str, ...]:
    """The same as a tuple; ConfigError if they are no patterns of relative paths."""
    listed = isinstance(value, Sequence) and not isinstance(value, str)
    if not listed or not all(isinstance(pattern, str) for pattern in value):
        raise ConfigError(f'SyncConfig({name}={value!r}): a list of patterns is needed: ["*.tmp"]')
    for pattern in value:
        if not pattern or pattern.startswith("/"):
            raise ConfigError(
                f"SyncConfig({name}=...): {pattern!r} has to be relative to the trial directory"
            )
        if {".", ".."} & set(pattern.split("/")):
            raise ConfigError(
                f"SyncConfig({name}=...): {pattern!r} matches nothing, as no path has '.' or '..'; "
                "write it without"
            )
    return tuple(value)


def own_syncers(given: Any) -> str:
    """What a syncer of the user's own may be, for the error of something that is none."""
    made = f"{given.__name__}() of the class {given.__name__}, " if isinstance(given, type) else ""
    return (
        f"one of your own is {made}a CommandSyncer(...), a CallbackSyncer(...) of functions, or an "
        "instance of a subclass of Syncer"
    )


def check_options(options: Any, is_bucket: bool) -> None:
    """Raise ConfigError if these are no options of a bucket, or there is none."""
    if options is None:
        return
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise ConfigError("SyncConfig(storage_options=...): a dict with names as keys is needed")
    if options and not is_bucket:
        raise ConfigError("SyncConfig(storage_options=...): there is no bucket as upload_dir")
