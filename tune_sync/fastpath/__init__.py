"""Checkpoints in shared memory. Needs neither Ray nor, but for `torch_*`, PyTorch."""

from tune_sync.fastpath.settings import FastPath
from tune_sync.fastpath.sizing import shared_memory_bytes
from tune_sync.fastpath.slot import Slot
from tune_sync.fastpath.slots import Slots
from tune_sync.fastpath.tls import Tls

__all__ = ["FastPath", "Slot", "Slots", "Tls", "shared_memory_bytes"]
