"""Which URLs there are libraries for, whether installed or not."""

from __future__ import annotations

import re

from tune_sync.errors import ConfigError

_WEB = ("http", "https")
# Of fsspec's, what is no place that many processes can write to.
_READ_ONLY = ("data", "dvc", "git", "github", "gist", "reference")
_ARCHIVES = ("libarchive", "tar", "zip")
_AROUND_ANOTHER = (
    "async_wrapper", "asyncwrapper", "asynclocal", "blockcache", "cached", "dask", "dir",
    "filecache", "generic", "simplecache",
)  # fmt: skip
_NOTEBOOKS = ("jlab", "jupyter")
IN_ONE_PROCESS = "memory"
_NO_PLACES = {
    **dict.fromkeys(_READ_ONLY, "is only read from"),
    **dict.fromkeys(_ARCHIVES, "is one archive, which several processes cannot write at once"),
    **dict.fromkeys(
        _AROUND_ANOTHER, "stands for another filesystem; give the URL, or the path, of that one"
    ),
    **dict.fromkeys(_NOTEBOOKS, "is a notebook's server, which takes a file whole, in one request"),
    IN_ONE_PROCESS: "is the memory of one process, and each trial has its own",
    # It answers 550 to all that fails.
    "ftp": (
        "cannot be used: its servers answer alike for what is not there and for what they refuse, "
        "and need not replace a file whole; where that host has SSH, use sftp://; or a command "
        "that reaches it: SyncConfig(syncer=CommandSyncer(...))"
    ),
}
_TESTED = {
    "s3": "obstore",
    "gs": "obstore",
    "abfs": "obstore adlfs",
    "root": "fsspec-xrootd",
    "sftp": "paramiko",
}

_SLIP = re.compile(r"([A-Za-z0-9]+)(:/(?!/)|//)")


def package_of(scheme: str) -> str:
    """What to install for URLs of a scheme that is tested here; "" for others."""
    return _TESTED.get(scheme, "")


def meant_url(text: str) -> str:
    """What a text with a slip in its "://" is meant to be, as "s3:/b/x" or "s3//b/x"; else ""."""
    found = _SLIP.match(text)
    scheme = found[1].lower() if found else ""
    return f"{scheme}://{text[found.end() :].lstrip('/')}" if found and scheme in _TESTED else ""


def check_scheme(scheme: str) -> None:
    """Raise ConfigError for a scheme that nothing can be written to safely, or nobody knows."""
    import fsspec  # not at the top: most runs need none of it

    if scheme in _WEB:
        raise ConfigError(
            f"{scheme}:// is only read from; where that is the address of an S3-like store, give "
            's3://bucket/path and storage_options={"endpoint_url": "'
            f'{scheme}://..."}}; {_known()}'
        )
    if why := _NO_PLACES.get(scheme):
        raise ConfigError(f"{scheme}:// {why}; {_known()}")
    known = {*_TESTED, *fsspec.available_protocols(), *fsspec.registry}
    if scheme not in known and scheme.lower() in known:
        raise ConfigError(f"{scheme}:// is unknown; write it in lower case: {scheme.lower()}://")
    if scheme not in known:
        raise ConfigError(f"{scheme}:// is unknown, to fsspec as well; {_known()}")


def _known() -> str:
    packages = ", ".join(f"{scheme}:// (pip install {of})" for scheme, of in _TESTED.items())
    return f"these work: {packages}, other libraries of fsspec, and a path that all nodes see"
