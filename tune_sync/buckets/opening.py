"""`open_bucket`: the bucket of a URL, as every user of buckets gets it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from tune_sync.buckets.engines import make_client
from tune_sync.buckets.environment import asked_server, environment_options, missing_credentials
from tune_sync.buckets.retry import DEFAULT_TRIES_COUNT, Retry, RetryBucket
from tune_sync.buckets.url import BucketUrl
from tune_sync.errors import ConfigError, PutConflictError, StoreDeniedError, StoreError

PROBE_KEY = ".tune_sync-probe"
# What is wrong with a place should be told within seconds: a check tries only twice.
CHECK_TRIES_COUNT = 2
# One that has answered is there: bad weather and throttling are sat out, as in a run.
CHECK_PATIENCE_S = 30.0
# An object that was just put is put again; Google refuses that within a second. These take longer.
PROBE_TRIES_COUNT = 4


def open_bucket(
    url: BucketUrl, options: Mapping[str, Any] | None = None, retry: Retry | None = None,
    here: str = "",
) -> RetryBucket:  # fmt: skip
    """The bucket of `url`. No request is made.

    Args:
        url: The root; keys are relative to it.
        options: `SyncConfig.storage_options`; none takes those of the environment.
        retry: How often a request is tried; as a rule that is said by the option `tries_count`.
        here: The node that asks, for messages, if its driver has asked before; else "".

    Raises:
        ConfigError: `tries_count` is no number of tries.
    """
    given = dict(options or environment_options())
    tries_count = given.pop("tries_count", DEFAULT_TRIES_COUNT)
    if type(tries_count) is not int or tries_count < 1:
        raise ConfigError(f"storage_options tries_count={tries_count!r}: 1 or more is needed")
    return RetryBucket(
        lambda: make_client(url, given), str(url), retry or Retry(tries_count), here,
        lambda: missing_credentials(url.scheme, given), lambda: asked_server(url.scheme, given),
    )  # fmt: skip


def check_bucket(
    url: BucketUrl, options: Mapping[str, Any] | None, *, write: bool, by_node: bool = False
) -> None:
    """Look whether a bucket can be used, with as few requests as that takes.

    Args:
        url: The root.
        options: `SyncConfig.storage_options`; none takes those of the environment.
        write: Put and delete an object as well, and put it on condition where its library can.
            Remove what was left aside.
        by_node: The driver has looked: leave out the two that need not be done by each node.

    Raises:
        ConfigError: No such bucket, another region, a missing library; a store that overlooks
            conditions.
        StoreDeniedError: No permission, or no valid credentials.
        StoreUnreachableError: It does not answer.
    """
    quick = dict(options or environment_options())
    quick.setdefault("request_timeout_s", 10.0)
    bucket = open_bucket(url, quick, Retry(CHECK_TRIES_COUNT, patience_s=CHECK_PATIENCE_S))
    bucket.check(tidies=write and not by_node)
    probe = f"{PROBE_KEY}-{uuid.uuid4().hex}"
    if bucket.info(probe) is not None:  # a web server may have a page for every path
        raise ConfigError(
            f"{url}: an object is answered that nobody has put; what answers there is no such "
            f"store: is the endpoint right (asked: {asked_server(url.scheme, quick)})?"
        )
    if write:
        retry = Retry(PROBE_TRIES_COUNT, patience_s=CHECK_PATIENCE_S)
        try:
            _check_puts(url, open_bucket(url, quick, retry), probe, conditions=not by_node)
        except StoreDeniedError as error:
            raise StoreDeniedError(
                f"before training an object is put and deleted, to see that both work: {error}"
            ) from error.__cause__  # told once


def _check_puts(url: BucketUrl, bucket: RetryBucket, probe: str, *, conditions: bool) -> None:
    bucket.put(probe, b"")
    conditions = conditions and bucket.capabilities.conditional_put
    lacks = _lacks_conditions(bucket, probe) if conditions else ""
    bucket.delete([probe])
    if lacks:
        raise ConfigError(
            f"{url}: the store {lacks}: two drivers could take one experiment, and a late writer "
            "replace files of a checkpoint that counts; use a store, or a version of it, that "
            'knows conditional puts (If-None-Match, If-Match), or give storage_options={"engine": '
            '"pyarrow"}, which looks before it puts'
        )


def _lacks_conditions(bucket: RetryBucket, probe: str) -> str:
    """What a store does wrong about puts on condition, as many S3-like ones do; "" if nothing."""
    try:
        bucket.put(probe, b"again", create_only=True)
    except PutConflictError:
        return ""
    except StoreError:
        raise
    except OSError as error:  # a put without a condition has just worked
        return f"refuses a put on condition ({error})"
    return "replaced an object though it was told not to (If-None-Match)"
