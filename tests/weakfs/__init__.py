"""A file system with the bad manners of network mounts, mounted for real through FUSE."""

from tests.weakfs.mount import Weakness, weak_mount

__all__ = ["Weakness", "weak_mount"]
