"""What libraries raise, word for word as seen, becomes an error that says what to do."""

from __future__ import annotations

import errno

import pytest

from tune_sync.buckets.failures import as_store_error, is_denied, is_transient
from tune_sync.errors import (
    ConfigError,
    LeaseLostError,
    PutConflictError,
    StoreDeniedError,
    StoreFullError,
    StoreUnreachableError,
    TuneSyncError,
)


# Named as those of obstore and botocore, which need not be installed here.
class GenericError(Exception): ...


class PermissionDeniedError(Exception): ...


class AlreadyExistsError(Exception): ...


class PreconditionError(Exception): ...


class EndpointConnectionError(Exception): ...


class UnknownConfigurationKeyError(Exception): ...


def by_obstore(method: str, status: str, code: str = "", message: str = "") -> str:
    """As obstore 0.12 prints it: the settings at the end hold words of other errors."""
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>" if code else ""
    return (
        f"Generic S3 error: Error performing {method} http://h:1/bucket/timeout/503 in 1.7ms, "
        f"after 5 retries, max_retries: 5, retry_timeout: 120s - Server returned non-2xx status "
        f"code: {status}: {body}\n\nDebug source:\nRetry {{ retry_timeout: 120s, connection }}"
    )


def by_arrow(code: str, operation: str, message: str = "No response body.") -> str:
    return (
        f"When getting information for key 'exp/SlowDown/connection' in bucket 'bucket': AWS Error "
        f"{code} during {operation} operation: {message}"
    )


MAPPED = [
    (GenericError(by_obstore("PUT", "400 Bad Request", "BadDigest", "no")), StoreUnreachableError),
    (
        OSError(by_arrow("UNKNOWN (HTTP status 400)", "PutObject", "no name: InvalidDigest")),
        StoreUnreachableError,
    ),
    (GenericError(by_obstore("GET", "404 Not Found", "NoSuchBucket", "no")), ConfigError),
    (FileNotFoundError(by_obstore("GET", "404 Not Found", "NoSuchBucket", "no")), ConfigError),
    (FileNotFoundError("The specified bucket does not exist"), ConfigError),
    (OSError(by_arrow("NO_SUCH_BUCKET", "CreateMultipartUpload")), ConfigError),
    (OSError(by_arrow("HTTP status 301", "HeadBucket", "PermanentRedirect")), ConfigError),
    (GenericError(by_obstore("GET", "400 Bad Request", "AuthorizationHeaderMalformed", "")),
     ConfigError),
    (UnknownConfigurationKeyError("Configuration key: 'x' is not known."), ConfigError),
    (PermissionDeniedError(by_obstore("PUT", "403 Forbidden", "InvalidAccessKeyId", "")),
     StoreDeniedError),
    (PermissionDeniedError(by_obstore("HEAD", "403 Forbidden")), StoreDeniedError),
    (GenericError(by_obstore("GET", "403 Forbidden", "AccessDenied", "")), StoreDeniedError),
    (GenericError(by_obstore("GET", "400 Bad Request", "ExpiredToken", "")), StoreDeniedError),
    (OSError(by_arrow("ACCESS_DENIED", "HeadObject")), StoreDeniedError),
    (OSError(by_arrow("INVALID_ACCESS_KEY_ID", "ListObjectsV2")), StoreDeniedError),
    (OSError(by_arrow("SIGNATURE_DOES_NOT_MATCH", "PutObject")), StoreDeniedError),
    (GenericError(by_obstore("HEAD", "400 Bad Request")), StoreDeniedError),
    (OSError(by_arrow("UNKNOWN (HTTP status 400)", "HeadObject")), StoreDeniedError),
    (OSError(by_arrow("UNKNOWN (HTTP status 301)", "HeadObject")), ConfigError),
    (GenericError("Generic S3 error: Error performing GET http://h:1/b in 1ms - Received redirect "
                  "without LOCATION, this normally indicates an incorrectly configured region"),
     ConfigError),
    (OSError("AuthorizationFailure: Server failed to authenticate the request."), StoreDeniedError),
    (PermissionError("Forbidden"), StoreDeniedError),
    (PermissionError(errno.EACCES, "Permission denied", "/mnt/connect"), StoreDeniedError),
    (OSError(errno.ENOSPC, "No space left on device", "/mnt/timeout"), StoreFullError),
    (OSError(errno.EROFS, "Read-only file system", "/mnt/x"), StoreFullError),
    (GenericError(by_obstore("PUT", "507 Full", "InsufficientStorage", "")), StoreFullError),
    (PermissionDeniedError(by_obstore("PUT", "403 Forbidden", "QuotaExceeded", "")),
     StoreFullError),
    (GenericError(by_obstore("PUT", "503 Service Unavailable", "SlowDown", "")),
     StoreUnreachableError),
    *((GenericError(by_obstore("PUT", f"{status} <unknown status code>", code, "no")),
       StoreUnreachableError) for status in (509, 520, 522, 524, 530) for code in ("", "X")),
    (GenericError(by_obstore("PUT", "507 Insufficient Storage")), StoreFullError),
    (GenericError(by_obstore("PUT", "507 <unknown>", "XMinioStorageFull", "no")), StoreFullError),
    (OSError(by_arrow("UNKNOWN (HTTP status 507)", "HeadObject")), StoreFullError),
    (OSError(by_arrow("UNKNOWN", "PutObject", "ExceptionName: XMinioStorageFull")), StoreFullError),
    (OSError(5, "An error occurred (XMinioStorageFull) when calling the PutObject operation: full"),
     StoreFullError),
    (OSError(5, "An error occurred (507) when calling the HeadObject operation: full"),
     StoreFullError),
    (OSError(by_arrow("UNKNOWN (HTTP status 520)", "PutObject")), StoreUnreachableError),
    *((kind(by_obstore("PUT", "409 Conflict", code, "no")), StoreUnreachableError)
      for kind in (GenericError, AlreadyExistsError, PreconditionError)
      for code in ("ConditionalRequestConflict", "OperationAborted")),
    (OSError(by_arrow("UNKNOWN (HTTP status 409)", "PutObject",
                      "Unable to parse ExceptionName: OperationAborted")), StoreUnreachableError),
    (AlreadyExistsError(by_obstore("PUT", "409 Conflict", "EntityAlreadyExists", "no")),
     PutConflictError),
    (GenericError("Generic S3 error: HTTP error: request or response body error"),
     StoreUnreachableError),
    (GenericError(by_obstore("PUT", "500 Internal Server Error")), StoreUnreachableError),
    (GenericError("Generic S3 error: Error performing HEAD http://h:9/x in 1.3s - HTTP error: "
                  "error sending request"), StoreUnreachableError),
    (OSError(by_arrow("NETWORK_CONNECTION", "HeadObject", "curlCode: 7")), StoreUnreachableError),
    (OSError(by_arrow("SLOW_DOWN", "PutObject")), StoreUnreachableError),
    (EndpointConnectionError('Could not connect to the endpoint URL: "http://h:9/x"'),
     StoreUnreachableError),
    (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), StoreUnreachableError),
    (TimeoutError(), StoreUnreachableError),
    (AlreadyExistsError(by_obstore("PUT", "412 Failed", "PreconditionFailed", "")),
     PutConflictError),
    (PreconditionError(by_obstore("PUT", "412 Failed", "PreconditionFailed", "")),
     PutConflictError),
]  # fmt: skip


@pytest.mark.parametrize(("error", "kind"), MAPPED)
def test_it_is_told_by_what_to_do(error: Exception, kind: type[TuneSyncError]) -> None:
    mapped = as_store_error(error, "s3://b/x: cannot put k")
    assert type(mapped) is kind
    assert str(mapped).startswith("s3://b/x: cannot put k: ") and "; " in str(mapped)
    assert "Debug" not in str(mapped) and "\n" not in str(mapped)
    assert is_transient(error) is is_transient(mapped) is (kind is StoreUnreachableError)
    assert is_denied(error) is is_denied(mapped) is (kind is StoreDeniedError)


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(by_obstore("GET", "404 Not Found", "NoSuchKey", "no key")),
        FileNotFoundError("bucket/p/connection timed out 503"),
        FileNotFoundError(errno.ENOENT, "No such file", "/mnt/bucket/timeout"),
        IsADirectoryError(errno.EISDIR, "Is a directory", "/mnt/connect"),
        NotADirectoryError(errno.ENOTDIR, "Not a directory", "/mnt/connect/x"),
    ],
)
def test_not_there_is_not_there_whatever_its_name_is(error: OSError) -> None:
    mapped = as_store_error(error, "cannot read k")
    assert type(mapped) is FileNotFoundError
    assert not is_transient(error) and not is_denied(error)


@pytest.mark.parametrize(
    "error",
    [
        GenericError("Error performing GET http://h/bucket/403/connect/503: something new"),
        OSError("When reading key 'exp/timeout/NoSuchBucket': something new"),
        OSError("it has 520 bytes of 522"),
        OSError("it has 507 bytes of 509"),
        OSError(5, "Input/output error", "/mnt/connect/403"),
    ],
)
def test_names_of_objects_are_never_taken_for_words_of_the_store(error: Exception) -> None:
    assert type(as_store_error(error, "cannot read k")) is OSError
    assert not is_transient(error) and not is_denied(error)


def test_a_bucket_that_is_not_there_is_told_without_a_setting_that_may_not_be_given() -> None:
    error = GenericError(by_obstore("GET", "404 Not Found", "NoSuchBucket", "no"))
    said = str(as_store_error(error, "s3://b/exp: cannot list x"))
    assert said.endswith("create the bucket, or correct the URL") and "upload_dir" not in said


def test_an_error_in_a_library_keeps_its_class_and_says_where_it_came_up() -> None:
    error = TypeError("ls() got an unexpected keyword argument 'refresh'")
    mapped = as_store_error(error, "s3://b/exp: cannot list x")
    assert type(mapped) is TypeError
    assert str(mapped).startswith(f"s3://b/exp: cannot list x: {error}; ")
    assert "another version" in str(mapped)
    assert as_store_error(mapped, "s3://b/exp: cannot list x") is mapped


ARCHIVED = "The operation is not valid for the object's "


@pytest.mark.parametrize(
    "error",
    [
        PermissionDeniedError(
            by_obstore("GET", "403 Forbidden", "InvalidObjectState", f"{ARCHIVED} storage class")
        ),
        OSError(by_arrow("[code 136]", "GetObject", f"{ARCHIVED}storage class")),
        PermissionError(f"{ARCHIVED}access tier"),
        AlreadyExistsError(by_obstore("GET", "409 Conflict", "BlobArchived", "not permitted")),
    ],
)
def test_what_the_store_has_archived_is_told_and_not_laid_on_credentials(error: Exception) -> None:
    mapped = as_store_error(error, "s3://b/exp: cannot read x")
    assert type(mapped) is StoreDeniedError
    assert "archived that object: restore it there first" in str(mapped)
    assert "credentials" not in str(mapped)
    assert not is_denied(error) and not is_transient(error)


def test_our_own_errors_stay_what_they_are() -> None:
    for error in (ConfigError("timed out"), PutConflictError("503"), StoreDeniedError("timeout")):
        assert as_store_error(error, "cannot put") is error
        assert not is_transient(error)
    assert not is_transient(LeaseLostError("someone else took over"))
