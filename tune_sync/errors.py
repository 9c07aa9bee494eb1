"""Every error of tune_sync's own that reaches its callers, grouped by what they do about it.

```
TuneSyncError
├── FixCallError             change the call, the configuration or the files, then call again
│   ├── ConfigError          (ValueError) a field, or a combination of fields, that cannot work
│   │   ├── UnknownFieldError (TypeError) there is no field of that name
│   │   └── RanksDisagreeError what ranks report cannot be one checkpoint
│   ├── PathRefusedError     (ValueError) a path or link that leaves its root or nests without end
│   ├── ExperimentExistsError (FileExistsError) the name is taken: resume it or choose another
│   ├── ImmutableError       (PermissionError) a published checkpoint never changes
│   │   ├── AskedTwiceError  Ray saved one report twice; nothing to do, it is stored once
│   │   └── UnreadableManifestError nobody can tell whether it is published: put that file right
│   ├── NotSharedError       (FileNotFoundError) a node does not see a path that has to be shared
│   ├── PeerRefusedError     (PermissionError) the other host is not of this run: another token
│   └── TransportMissingError (RuntimeError) the transport that is required cannot be used here
├── StoreError               the store, or your syncer, could not do it; older data is intact
│   ├── StoreFullError       (OSError) no space, quota, or a read-only store: make room, then retry
│   ├── StoreDeniedError     (PermissionError) credentials, or permissions of a bucket or directory
│   ├── StoreUnreachableError (ConnectionError) a bucket does not answer, after all tries
│   ├── PutConflictError     (FileExistsError) another writer was first
│   ├── HomeLostError        (ConnectionError) the node that keeps the results does not answer
│   ├── PeerLostError        (ConnectionError) a host that memory is sent to does not answer
│   └── SyncTimeoutError     (TimeoutError) nothing was acknowledged for `sync_timeout` seconds
├── NotWholeError            this checkpoint is not complete: fall back to an older one
├── DamagedError             (ValueError) bytes differ from their digest, or metadata is unreadable
├── LeaseError               another run owns the experiment directory
│   ├── LeaseHeldError       do not start: someone else is running
│   └── LeaseLostError       stop: someone else took over
├── TransferCancelledError   whoever started a transfer of memory ended it
└── NotStoredError           the run ended, and what the message names is not stored
```

All of them survive pickling: their arguments are positional.

Beside these there are Python's own: `FileNotFoundError` and other `OSError`s of a disk or a bucket,
`ModuleNotFoundError` of `import tune_sync.torch` where PyTorch is not installed, and from the
methods of a `Syncer`, as Ray had it, `RuntimeError` (nothing to retry, or the last try failed too)
and `NotImplementedError`. Errors that one part of tune_sync raises for another and that is caught
there stand where they are raised.
"""

from __future__ import annotations


class TuneSyncError(Exception):
    """Base of every error raised by tune_sync."""


class FixCallError(TuneSyncError):
    """The call, the configuration or the files have to be changed."""


class ConfigError(FixCallError, ValueError):
    """A field, or a combination of fields, that cannot work."""


class UnknownFieldError(ConfigError, TypeError):
    """There is no field of that name: a slip of the pen, or a field of another class."""


class RanksDisagreeError(ConfigError):
    """What ranks report cannot be put together: one name, and different bytes or kinds."""


class PathRefusedError(FixCallError, ValueError):
    """A path or a link that leaves its root, or that nests without end."""


class ExperimentExistsError(FixCallError, FileExistsError):
    """The experiment name is taken by an earlier run."""


class ImmutableError(FixCallError, PermissionError):
    """A write into a published checkpoint, whose bytes never change."""


class AskedTwiceError(ImmutableError):
    """Ray saved one report twice, and asks to publish it again. Only logged; nothing is lost."""


class UnreadableManifestError(ImmutableError):
    """A write into a checkpoint whose manifest cannot be read: it may be published, or not."""


class NotSharedError(FixCallError, FileNotFoundError):
    """A node does not see a storage path that all nodes have to share."""


class PeerRefusedError(FixCallError, PermissionError):
    """This host and the other do not know the same token, so they are not of one run."""


class TransportMissingError(FixCallError, RuntimeError):
    """The transport that is required cannot be used, on this host or to the other."""


class StoreError(TuneSyncError):
    """The store could not do what was asked; what it held before is intact.

    Itself where a syncer of the user's fails: the message has what that said.
    """


class StoreFullError(StoreError, OSError):
    """No space left, a quota, or a read-only store."""


class StoreDeniedError(StoreError, PermissionError):
    """The bucket refuses these credentials, or this user may not read or write what is named."""


class StoreUnreachableError(StoreError, ConnectionError):
    """The bucket does not answer, or only with errors of its own, after all tries."""


class PutConflictError(StoreError, FileExistsError):
    """Another writer put that object first."""


class HomeLostError(StoreError, ConnectionError):
    """The home node, which keeps the results, does not answer."""


class PeerLostError(StoreError, ConnectionError):
    """The host that memory is sent to, or read from, does not answer."""


class SyncTimeoutError(StoreError, TimeoutError):
    """Nothing was acknowledged for `sync_timeout` seconds."""


class NotWholeError(TuneSyncError):
    """A checkpoint that is not complete was asked for or was to be published."""


class DamagedError(TuneSyncError, ValueError):
    """Bytes that differ from their digest, or metadata that cannot be read."""


class LeaseError(TuneSyncError):
    """Another run owns the experiment directory."""


class LeaseHeldError(LeaseError):
    """Another live run owns the experiment directory; this one must not start."""


class LeaseLostError(LeaseError):
    """Another run took over the experiment directory; this one must stop writing."""


class TransferCancelledError(TuneSyncError):
    """A transfer of memory was ended by whoever started it."""


class NotStoredError(TuneSyncError):
    """The run ended, and what the message names did not reach its destination."""


# What was reported is wrong in itself, wherever and whenever it is published. Nothing else is: what
# a store answers of its bucket, region, credentials or place says nothing of a checkpoint.
WRONG_IN_ITSELF = (RanksDisagreeError, PathRefusedError, ImmutableError)
# It cannot be published now, and where nobody will bring what is missing, never.
NOT_PUBLISHABLE = (*WRONG_IN_ITSELF, DamagedError, NotWholeError)
