"""The error tree: grouped by what the caller does, and able to cross processes."""

from __future__ import annotations

import errno
import pickle
from pathlib import Path

import pytest

from tune_sync import errors

BASES = {
    "TuneSyncError": (Exception,),
    "FixCallError": (errors.TuneSyncError,),
    "ConfigError": (errors.FixCallError, ValueError),
    "UnknownFieldError": (errors.ConfigError, TypeError),
    "RanksDisagreeError": (errors.ConfigError,),
    "PathRefusedError": (errors.FixCallError, ValueError),
    "ExperimentExistsError": (errors.FixCallError, FileExistsError),
    "ImmutableError": (errors.FixCallError, PermissionError),
    "AskedTwiceError": (errors.ImmutableError,),
    "UnreadableManifestError": (errors.ImmutableError,),
    "NotSharedError": (errors.FixCallError, FileNotFoundError),
    "PeerRefusedError": (errors.FixCallError, PermissionError),
    "TransportMissingError": (errors.FixCallError, RuntimeError),
    "StoreError": (errors.TuneSyncError,),
    "StoreFullError": (errors.StoreError, OSError),
    "StoreDeniedError": (errors.StoreError, PermissionError),
    "StoreUnreachableError": (errors.StoreError, ConnectionError),
    "PutConflictError": (errors.StoreError, FileExistsError),
    "HomeLostError": (errors.StoreError, ConnectionError),
    "PeerLostError": (errors.StoreError, ConnectionError),
    "SyncTimeoutError": (errors.StoreError, TimeoutError),
    "NotWholeError": (errors.TuneSyncError,),
    "DamagedError": (errors.TuneSyncError, ValueError),
    "LeaseError": (errors.TuneSyncError,),
    "LeaseHeldError": (errors.LeaseError,),
    "LeaseLostError": (errors.LeaseError,),
    "TransferCancelledError": (errors.TuneSyncError,),
    "NotStoredError": (errors.TuneSyncError,),
}
FOUND = {n: kind for n, kind in vars(errors).items() if isinstance(kind, type)}


def test_the_table_of_bases_is_complete_and_true() -> None:
    assert {name: kind.__bases__ for name, kind in FOUND.items()} == BASES


@pytest.mark.parametrize("name", BASES)
def test_an_error_survives_pickling(name: str) -> None:
    for arguments in (("what to do",), (errno.ENOSPC, "what to do"), (errno.EIO, "why", "/path")):
        error = FOUND[name](*arguments)
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert str(again) == str(error) and again.args == error.args
        assert getattr(again, "errno", None) == getattr(error, "errno", None)


@pytest.mark.parametrize("name", BASES)
def test_the_docstring_of_the_module_draws_every_error(name: str) -> None:
    assert name in (errors.__doc__ or "")
    assert FOUND[name].__doc__


@pytest.mark.parametrize(
    "name", sorted(set(BASES) - {kind.__name__ for b in BASES.values() for kind in b})
)
def test_what_to_do_about_an_error_is_in_the_docs(name: str) -> None:
    page = Path(__file__).parents[2] / "docs/howto/errors.md"
    assert f"| `{name}` |" in page.read_text()
