"""What libraries of object stores raise, as the errors of tune_sync. The only such mapping."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tune_sync.errors import (
    ConfigError,
    FixCallError,
    PutConflictError,
    StoreDeniedError,
    StoreError,
    StoreFullError,
    StoreUnreachableError,
)


@dataclass(frozen=True, slots=True)
class _Kind:
    words: re.Pattern[str]
    error: type[Exception]
    advice: str
    transient: bool = False


def _kind(words: str, error: type[Exception], advice: str, *, transient: bool = False) -> _Kind:
    return _Kind(re.compile(words, re.IGNORECASE), error, advice, transient)


# The first that matches counts. Words are error codes of S3, Google and Azure as the libraries
# print them: with and without blanks, as Arrow writes ACCESS_DENIED for AccessDenied.
_KINDS = (
    _kind(
        "NoSuchBucket|NO_SUCH_BUCKET|bucket does not exist|Bucket not found|ContainerNotFound",
        ConfigError, "create the bucket, or correct upload_dir",
    ),
    _kind(
        "PermanentRedirect|AuthorizationHeaderMalformed|IllegalLocationConstraint|301 Moved",
        ConfigError,
        "the bucket is in another region: set AWS_REGION, or storage_options={'region': ...}",
    ),
    _kind(
        "InvalidPart|EntityTooLarge|EntityTooSmall", OSError,
        "the store refused the size of a part; this is an error of tune_sync",
    ),
    _kind(
        "ExpiredToken|TokenExpired|EXPIRED_TOKEN|token.{0,20}expired|RequestExpired",
        StoreDeniedError, "the credentials have expired: renew them",
    ),
    _kind(
        r"InvalidAccessKey|SignatureDoesNotMatch|SIGNATURE_DOES_NOT_MATCH|INVALID_ACCESS_KEY|"
        r"InvalidClientTokenId|INVALID_CLIENT_TOKEN|Unauthenticated|\b401\b|NoCredentials|"
        r"Unable to locate credentials|"
        r"MissingAuthenticationToken|169\.254\.169\.254",
        StoreDeniedError, "the credentials are missing or wrong: check them on this node",
    ),
    _kind(
        r"AccessDenied|ACCESS_DENIED|Access Denied|PermissionDenied|\b403\b|Forbidden|"
        "lacked the necessary privileges|AllAccessDisabled",
        StoreDeniedError,
        "these credentials may not do that: reading, writing, listing and deleting are needed",
    ),
    _kind("QuotaExceeded|InsufficientStorage|EntityQuota", StoreFullError, "make room, then retry"),
    _kind(
        r"SlowDown|SLOW_DOWN|TooManyRequests|\b429\b|rateLimitExceeded|ServerBusy|Throttl",
        StoreUnreachableError, "the store asks for fewer requests", transient=True,
    ),
    _kind(
        r"timed? ?-?out|TIMEOUT|deadline|\b50[0234]\b|InternalError|INTERNAL_FAILURE|"
        r"ServiceUnavailable|SERVICE_UNAVAILABLE|NETWORK_CONNECTION|connection|connect|"
        r"error sending request|error decoding response|incomplete|broken pipe|reset by peer|"
        r"dns|resolve host|unreachable|curlCode",
        StoreUnreachableError,
        "is the endpoint right, and the network up? A slow store needs "
        "storage_options={'request_timeout_s': ...}",
        transient=True,
    ),
)  # fmt: skip


def is_transient(error: BaseException) -> bool:
    """Whether the same request may work in a moment."""
    if isinstance(error, (StoreUnreachableError,)):
        return True
    if isinstance(error, (FixCallError, StoreError)):
        return False
    if isinstance(error, (ConnectionError, TimeoutError)):
        return True
    kind = _find(error)
    return kind is not None and kind.transient


def is_denied(error: BaseException) -> bool:
    """Whether new credentials may help."""
    if isinstance(error, StoreDeniedError):
        return True
    kind = _find(error)
    return kind is not None and kind.error is StoreDeniedError


def as_store_error(error: Exception, doing: str) -> Exception:
    """The error to raise for what a library raised.

    Args:
        error: From the library.
        doing: The operation and the place, for the message.
    """
    if isinstance(error, (FixCallError, StoreError)):
        return error
    if type(error).__name__ in ("AlreadyExistsError", "PreconditionError"):
        return PutConflictError(f"{doing}: another writer was first")
    kind = _find(error)
    brief = _brief(error)
    if kind is None:
        if isinstance(error, (FileNotFoundError, TypeError, ValueError)):
            return error
        return OSError(f"{doing}: {brief}")
    return kind.error(f"{doing}: {brief}; {kind.advice}")


def _find(error: BaseException) -> _Kind | None:
    if isinstance(error, FileNotFoundError) and not re.search("bucket", str(error), re.I):
        return None
    text = f"{type(error).__name__}: {error}"
    named = next((kind for kind in _KINDS if kind.words.search(text)), None)
    if named is None and isinstance(error, PermissionError):
        return next(k for k in _KINDS if k.error is StoreDeniedError and "may not" in k.advice)
    if named is None and isinstance(error, (ConnectionError, TimeoutError)):
        return _KINDS[-1]
    return named


def _brief(error: BaseException) -> str:
    """One line, without what libraries add for their own debugging."""
    text = str(error).partition("Debug source:")[0]
    code = re.search(r"<Code>(.*?)</Code>\s*<Message>(.*?)</Message>", text)
    if code:
        return f"{code[1]}: {code[2]}"
    return " ".join(text.split())[:300] or type(error).__name__
