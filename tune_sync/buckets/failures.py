"""What libraries for buckets raise, as the errors of tune_sync. The only such mapping."""

from __future__ import annotations

import errno
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


_RESTORED = (
    "A restored run takes them from the environment, from tune_sync.restore_kwargs(...), or as "
    "JSON from TUNE_SYNC_STORAGE_OPTIONS"
)
# What it means that something is not there: to who reads, and to who puts.
NO_OBJECT = "there is no such object"
NO_PLACE = (
    "what answers there does not know this place: is the endpoint right, without a path, and is "
    "the bucket there?"
)
_MISSING_BUCKET = _kind(
    "NoSuchBucket|NO_SUCH_BUCKET|bucket does not exist|Bucket not found|ContainerNotFound|"
    "container does not exist",
    ConfigError, "create the bucket, or correct the URL",
)  # fmt: skip
_OPTION = _kind("", ConfigError, "correct storage_options")
_CONFLICT = _kind("", PutConflictError, "another writer was first")
_DENIED = _kind(
    r"AccessDenied|ACCESS_DENIED|Access Denied|PermissionDenied|\b403\b|Forbidden|"
    "lacked the necessary privileges|AllAccessDisabled|AuthorizationPermissionMismatch",
    StoreDeniedError,
    "these credentials may not do that: reading, writing, listing and deleting are needed; or they "
    f"are wrong, which a store does not always say. {_RESTORED}",
)
_FULL = _kind(
    # 507 is that of WebDAV, which MinIO has taken over; an answer to a HEAD has nothing else.
    r"QuotaExceeded|InsufficientStorage|StorageFull|EntityQuota|(?:status(?: code)?:? |\()507\b",
    StoreFullError, "make room, then retry",
)  # fmt: skip
# A rule of the bucket has moved it to where nothing is read at once, as Glacier.
_ARCHIVED = _kind(
    "InvalidObjectState|operation is not valid for the object|BlobArchived", StoreDeniedError,
    "the store has archived that object: restore it there first, and have no rule of the bucket "
    "archive what an experiment needs",
)  # fmt: skip
# S3 says this while another request for the same key is under way, and not who comes first.
_IN_PROGRESS = _kind(
    "ConditionalRequestConflict|OperationAborted", StoreUnreachableError,
    "another request for that object is under way, and does not end", transient=True,
)  # fmt: skip
_UNREACHABLE = _kind(
    r"timed? ?-?out|TIMEOUT|deadline|\b50[0234]\b|InternalError|INTERNAL_FAILURE|"
    # Of what is in front of a store, as Cloudflare; not without a word beside: they may be sizes.
    r"(?:status(?: code)?:? |\(|error )(?:509|52[0-7]|530)\b|"
    r"ServiceUnavailable|SERVICE_UNAVAILABLE|NETWORK_CONNECTION|connection|connect|"
    r"error sending request|error decoding response|body error|incomplete|broken pipe|"
    r"reset by peer|"
    r"dns|resolve host|unreachable|curlCode",
    StoreUnreachableError,
    "is the endpoint right, and the network up? A slow store needs "
    "storage_options={'request_timeout_s': ...}",
    transient=True,
)

# To the end of an upload in parts that has ended: by an earlier try, or by an abort.
_ENDED_UPLOAD = _kind(
    "NoSuchUpload|NO_SUCH_UPLOAD|upload does not exist|upload ID may be invalid",
    StoreUnreachableError,
    "an answer was lost, and what is there is not known to be what was sent: send it again",
    transient=True,
)
_THROTTLED = _kind(
    r"SlowDown|SLOW_DOWN|TooManyRequests|\b429\b|rateLimitExceeded|ServerBusy|Throttl",
    StoreUnreachableError, "the store asks for fewer requests", transient=True,
)  # fmt: skip
# A page of a web server, or a path before the bucket: no store says that.
_NO_STORE = _kind(
    r"<html|<!doctype|ETag Header missing|Got invalid \w+ response|An error occurred \(\) when|"
    r"404 Not Found|405 Method Not Allowed|HTTP status 40[45]\)|RESOURCE_NOT_FOUND during|"
    r"no store's answer|non-partial response|status code: 30[278]\b",
    ConfigError, "what answers there is no such store: is the endpoint right, without a path?",
)  # fmt: skip
# The same from where a store has answered before.
_IN_BETWEEN = _kind(
    "", StoreUnreachableError,
    "the store has answered before, so this is of something in between: look at proxies, and for a "
    "page to sign in", transient=True,
)  # fmt: skip

# The first that matches counts. Words are error codes of S3, Google and Azure as the libraries
# print them: with and without blanks, as Arrow writes ACCESS_DENIED for AccessDenied.
_KINDS = (
    _MISSING_BUCKET,
    _kind(
        "PermanentRedirect|AuthorizationHeaderMalformed|IllegalLocationConstraint|301 Moved|"
        "HTTP status 301|incorrectly configured region",
        ConfigError,
        "the bucket is in another region: set AWS_REGION, or storage_options={'region': ...}. For "
        "a store that is not Amazon's, is the endpoint right?",
    ),
    _kind(
        "Account must be specified",
        ConfigError,
        "give storage_options={'account_name': ...}, or set AZURE_STORAGE_ACCOUNT_NAME",
    ),
    _kind(
        "One of service account path or service account key",
        ConfigError,
        "storage_options give one of them and the environment the other: unset "
        "GOOGLE_SERVICE_ACCOUNT and GOOGLE_SERVICE_ACCOUNT_KEY",
    ),
    _kind(
        "libjvm|libhdfs",
        ConfigError, "hdfs:// needs Java and Hadoop on each node: set JAVA_HOME and HADOOP_HOME",
    ),
    _kind(  # of botocore and pyarrow, before a request
        "InvalidRegionError|^ValueError: Invalid endpoint|Invalid DNS Label|A region must be set",
        ConfigError,
        "this library takes no such name of a host or region: correct storage_options "
        "endpoint_url and region, or AWS_ENDPOINT_URL and AWS_REGION",
    ),
    _IN_PROGRESS,
    _ENDED_UPLOAD,
    _ARCHIVED,
    _FULL,  # some stores say it as "403 Forbidden", too
    _kind(
        "InvalidPart|EntityTooLarge|EntityTooSmall", OSError,
        "the store refused the size of a part; this is an error of tune_sync",
    ),
    _kind(
        "BadDigest|InvalidDigest|SHA256Mismatch", StoreUnreachableError,
        "bytes were damaged on their way to the store; it has kept none of them", transient=True,
    ),
    _kind(
        "ExpiredToken|TokenExpired|EXPIRED_TOKEN|token.{0,20}expired|RequestExpired",
        StoreDeniedError, "the credentials have expired: renew them",
    ),
    _kind(  # the answer to a HEAD has no body, and so no code
        r"HTTP status 400\) during Head|performing HEAD .*\b400 Bad Request|"
        r"Errno 22\] Bad Request",
        StoreDeniedError,
        "the store does not say why; have the credentials expired, or is the region wrong?",
    ),
    _kind(
        "RequestTimeTooSkewed|REQUEST_TIME_TOO_SKEWED",
        StoreDeniedError, "the clock of this node is wrong: set it",
    ),
    _kind(
        r"InvalidAccessKey|SignatureDoesNotMatch|SIGNATURE_DOES_NOT_MATCH|INVALID_ACCESS_KEY|"
        r"InvalidClientTokenId|INVALID_CLIENT_TOKEN|UNRECOGNIZED_CLIENT|Unauthenticated|\b401\b|"
        r"NoCredentials|Unable to locate credentials|InvalidToken|INVALID_SECURITY_TOKEN|"
        r"MissingAuthenticationToken|MISSING_AUTHENTICATION_TOKEN|169\.254\.169\.254|"
        r"access key ID you provided|request signature we calculated|AuthorizationFailure|"
        r"AuthenticationFailed|failed to authenticate",
        StoreDeniedError,
        f"the credentials are missing or wrong: check them on this node. {_RESTORED}",
    ),
    _DENIED,
    _THROTTLED,
    _UNREACHABLE,
    _NO_STORE,
)  # fmt: skip

# Classes of obstore, which has no bases for them outside its own.
_CONFLICT_NAMES = ("AlreadyExistsError", "PreconditionError")
_CODE = re.compile(r"<Code>(.*?)</Code>\s*<Message>(.*?)</Message>", re.DOTALL)
_HTML = re.compile("<html|<!doctype", re.IGNORECASE)
_STATUS = re.compile(r"status code: (\d+[A-Za-z ]*)")
# As obstore prints that something is not there. Stores give a code, but to a HEAD, which has no
# body; what is in front of one, as a gateway, may have none, and any body.
_NO_CODE = re.compile(
    r"Error performing (?!HEAD )[A-Z]+ http\S+ in .*Server returned non-2xx status code: "
    "404 Not Found: (?!.*<Code>)", re.DOTALL,
)  # fmt: skip
_OF_SERVERS = (ConfigError, StoreDeniedError, StoreUnreachableError)
_ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
# What may hold any word, as it is a name of the user's or a setting of ours.
_NAMES = re.compile(
    r"max_retries: \d+|retry_timeout: \S+|https?://(?!169\.254)\S+|for path .*?: |"
    r"""'[^']*'|"[^"]*\""""
)


def as_exception(error: BaseException) -> Exception:
    """What went wrong with a request, as what `except Exception` does not let pass.

    A panic of a library in Rust is none: it would end threads that others wait for. Anything else
    that is none is raised again.
    """
    if isinstance(error, Exception):
        return error
    if type(error).__name__ != "PanicException":
        raise error
    broken = OSError(f"its library broke off: {error!r}")
    broken.__cause__ = error
    return broken


def is_transient(error: BaseException, *, is_known: bool = False) -> bool:
    """Whether the same request may work in a moment. `is_known`: a store has answered there."""
    if isinstance(error, StoreUnreachableError):
        return True
    kind = None if isinstance(error, (FixCallError, StoreError)) else _find(error)
    return kind is not None and (kind.transient or (is_known and kind is _NO_STORE))


def is_no_store(error: BaseException) -> bool:
    """Whether something else has answered in place of a store."""
    return not isinstance(error, (FixCallError, StoreError)) and _find(error) is _NO_STORE


def is_throttled(error: BaseException) -> bool:
    """Whether the store has answered, and asks for fewer requests."""
    return not isinstance(error, (FixCallError, StoreError)) and _find(error) is _THROTTLED


def is_denied(error: BaseException) -> bool:
    """Whether new credentials may help."""
    if isinstance(error, (FixCallError, StoreError)):
        return isinstance(error, StoreDeniedError)
    kind = _find(error)
    return kind is not None and kind.error is StoreDeniedError and kind is not _ARCHIVED


def is_ended_upload(error: BaseException) -> bool:
    """Whether an upload in parts had ended before: maybe by a try whose answer was lost."""
    return _find(error) is _ENDED_UPLOAD


def as_store_error(
    error: Exception, doing: str, asked: str = "", absent: str = NO_OBJECT, *,
    is_known: bool = False,
) -> Exception:  # fmt: skip
    """The error to raise for what a library raised.

    Args:
        error: From the library.
        doing: The operation and the place, for the message.
        asked: Which server was asked. It is told where another one may have been meant.
        is_known: A store has answered there.
        absent: What to say where the library says that something is not there.
    """
    if isinstance(error, (FixCallError, StoreError)) or str(error).startswith(f"{doing}: "):
        return error
    kind = _find(error)
    if kind is _NO_STORE and is_known:
        kind = _IN_BETWEEN
    if kind is not None:
        which = f" (asked: {asked})" if asked and kind.error in _OF_SERVERS else ""
        return kind.error(f"{doing}: {_brief(error)}{which}; {kind.advice}")
    if isinstance(error, _ABSENT):
        which = f" (asked: {asked})" if asked and absent == NO_PLACE else ""
        return FileNotFoundError(f"{doing}{which}: {absent}")
    if type(error) is TypeError:  # by its own words alone nobody finds the place
        return TypeError(
            f"{doing}: {_brief(error)}; the library for it does not do what is asked of it: "
            "install another version of it, or of fsspec"
        )
    if isinstance(error, (TypeError, ValueError)):
        return error
    return OSError(f"{doing}: {_brief(error)}")


def _find(error: BaseException) -> _Kind | None:
    signature = _signature(error)
    if type(error).__name__ in _CONFLICT_NAMES:
        # An object that is not there is one, too, but nothing else that is missing.
        others = (_IN_PROGRESS, _ARCHIVED, _MISSING_BUCKET)
        known = next((k for k in others if k.words.search(signature)), None)
        return known or (_NO_STORE if _is_of_none(error) else _CONFLICT)
    if type(error).__name__ == "UnknownConfigurationKeyError":
        return _OPTION
    if isinstance(error, _ABSENT):
        if _MISSING_BUCKET.words.search(signature):
            return _MISSING_BUCKET
        if _ENDED_UPLOAD.words.search(signature):
            return _ENDED_UPLOAD
        return _NO_STORE if _is_of_none(error) else None
    if isinstance(error, OSError) and error.errno in _FULL_ERRNOS:
        return _FULL
    named = next((kind for kind in _KINDS if kind.words.search(signature)), None)
    return named or _by_class(error)


def _is_of_none(error: BaseException) -> bool:
    """Whether its words are no store's: a page, or an absence without a code."""
    return bool(_HTML.search(_signature(error)) or _NO_CODE.search(_own_words(error)))


def _by_class(error: BaseException) -> _Kind | None:
    if isinstance(error, PermissionError):
        return _DENIED
    return _UNREACHABLE if isinstance(error, (ConnectionError, TimeoutError)) else None


def _signature(error: BaseException) -> str:
    """Codes and words of the library or the store, without names of objects."""
    text = _own_words(error)
    code = _CODE.search(text)
    if code:
        status = _STATUS.search(text)
        text = f"{code[1]} {f'status {status[1]}' if status else ''}"
    elif "AWS Error" in text:
        text = text[text.index("AWS Error") :]
    return f"{type(error).__name__}: {_NAMES.sub(' ', text)}"


def _own_words(error: BaseException) -> str:
    """Without what obstore adds for its own debugging."""
    return str(error).partition("Debug source:")[0]


def _brief(error: BaseException) -> str:
    """One line."""
    text = _own_words(error)
    code = _CODE.search(text)
    if code:
        return f"{code[1]}: {code[2]}".rstrip(".")
    return " ".join(text.split())[:300].rstrip(":") or type(error).__name__
