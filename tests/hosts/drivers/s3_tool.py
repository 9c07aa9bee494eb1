"""A command that copies directories to and from S3, as those of a store's maker do.

``up DIRECTORY URL``, ``down URL DIRECTORY``, ``rm URL``. What is there already stays.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3


def place(url: str) -> tuple[Any, str]:
    """Bucket, and the start of all keys."""
    parts = urlsplit(url)
    return boto3.resource("s3").Bucket(parts.netloc), parts.path.strip("/") + "/"


def up(directory: str, url: str) -> None:
    bucket, prefix = place(url)
    if not Path(directory).is_dir():
        raise FileNotFoundError(directory)
    for path in sorted(Path(directory).rglob("*")):
        if path.is_file():
            bucket.upload_file(str(path), prefix + path.relative_to(directory).as_posix())


def down(url: str, directory: str) -> None:
    bucket, prefix = place(url)
    found = [entry.key for entry in bucket.objects.filter(Prefix=prefix)]
    if not found:
        raise FileNotFoundError(url)
    for key in found:
        target = Path(directory, key.removeprefix(prefix))
        target.parent.mkdir(parents=True, exist_ok=True)
        bucket.download_file(key, str(target))


def rm(url: str) -> None:
    bucket, prefix = place(url)
    bucket.objects.filter(Prefix=prefix).delete()


if __name__ == "__main__":
    {"up": up, "down": down, "rm": rm}[sys.argv[1]](*sys.argv[2:])
