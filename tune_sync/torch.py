"""`torch.save` and `torch.load`, at the speed at which a GPU gives its memory away.

```python
import tune_sync.torch as fast

fast.save(model.state_dict(), "/dev/shm/model.pt")
pending = fast.save_async(model.state_dict(), "/dev/shm/model.pt")
```

The files are those of `torch.save`: `torch.load` reads them.
"""

from __future__ import annotations

import functools
import os
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "tune_sync.torch needs PyTorch, which is not installed: pip install 'tune-sync[torch]'",
        name="torch",
    ) from error

from tune_sync.fastpath import torch_copies
from tune_sync.fastpath.sizing import SLOTS
from tune_sync.fastpath.slots import Slots
from tune_sync.fastpath.torch_saver import Saver

__all__ = ["configure", "load", "prepare", "save", "save_async"]

FileLike = str | os.PathLike[str] | IO[bytes]


@functools.cache
def _savers() -> list[Saver]:
    return []


def _saver() -> Saver:
    if not _savers():
        configure()
    return _savers()[-1]


def configure(
    *, memory_limit_bytes: int | None = None, max_checkpoints_in_memory: int = SLOTS
) -> None:
    """Set how much shared memory saves of this process may use. Waits for saves on their way.

    Args:
        memory_limit_bytes: Most for all slots together. None: half of what is free now, of the
            shared memory and of the machine.
        max_checkpoints_in_memory: Slots for checkpoints of about one size. Two are enough where
            each replaces the one before it. Files that stay in shared memory need one each.

    Raises:
        ConfigError: A limit that is no whole number above zero.
    """
    slots = Slots(
        memory_limit_bytes=memory_limit_bytes,
        max_checkpoints_in_memory=max_checkpoints_in_memory,
        on_made=torch_copies.register,
    )
    for earlier in _savers():
        earlier.close()
    _savers()[:] = [Saver(slots)]


def prepare(size_bytes: int) -> None:
    """Make the slots for checkpoints of about `size_bytes`, in the background.

    Without it the first save makes the first slot, which takes a second for every few GiB. Call
    it once CUDA is in use: the slots are registered with it then.

    Raises:
        ConfigError: `size_bytes` is no whole number above zero.
    """
    _saver().slots.prepare(size_bytes)


def save(obj: object, f: FileLike, **options: Any) -> None:
    """As `torch.save`; and a file appears whole or not at all.

    On return the file is there. Outside of shared memory its bytes are durable.

    Args:
        obj: What to save.
        f: A path, or a file that is open for writing: that is what `torch.save` does.
        options: As for `torch.save`.

    Raises:
        StoreFullError: No room; what was at the path before is intact.
    """
    if not isinstance(f, (str, os.PathLike)):
        torch.save(obj, f, **options)
        return
    _saver().save(obj, f, **options)


def save_async(
    obj: object, path: str | os.PathLike[str], *, overlap: bool = False, **options: Any
) -> Future[Path]:
    """Start saving `obj` as it is now, and return while the bytes are copied.

    The future is done when the file is whole and in its place; it raises what went wrong. Saves
    end in the order in which they were started.

    What the file holds are the values at the time of the call, under these conditions:

    - Python objects and tensors on the CPU: always. They are read before the call returns.
    - Tensors on CUDA, `overlap=False`: whatever is queued afterwards on the stream that is
      current in the call waits, on the GPU, until the copies are done. So does what is queued on
      other streams that wait for that one. The CPU goes on at once.
    - Tensors on CUDA, `overlap=True`: the GPU goes on at once too, and the next `step()` of every
      `torch.optim` optimizer waits for the copies. Storages of up to 1 MiB are copied on the GPU
      first, so buffers of modules are safe. Until that step nothing else may change larger
      tensors in place: no averaging of weights, no `load_state_dict`, no captured CUDA graph that
      holds a step.

    It blocks for longer the first time, while memory is made (see `prepare`), while two earlier
    saves are on their way, and where `torch.save` itself has to do it.

    Raises:
        StoreFullError: From the future. No room; what was at the path before is intact.
    """
    return _saver().save_async(obj, path, overlap=overlap, **options)


def load(f: FileLike, map_location: Any = None, **options: Any) -> Any:
    """As `torch.load`, with its arguments.

    Where `map_location` is a CUDA device, the file is mapped instead of read: its bytes go to the
    GPU without a copy on the way.
    """
    is_path = isinstance(f, (str, os.PathLike))
    if is_path and "mmap" not in options and _is_cuda(map_location):
        options["mmap"] = True
    return torch.load(f, map_location, **options)


def _is_cuda(map_location: Any) -> bool:
    return isinstance(map_location, (str, torch.device)) and str(map_location).startswith("cuda")
