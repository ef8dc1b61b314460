"""Turns an error of DynamoDB, of botocore or of the connection into one of caslock's, whose text shows no secret."""

from __future__ import annotations

from typing import Final

from botocore import exceptions

from caslock.errors import StoreError, StoreUnavailable
from caslock.stores.dynamodb.requests import KEY
from caslock.stores.shared.connections import reason
from caslock.stores.shared.failures import Failures as AnyFailures

_NOT_APPLIED: Final = {
    "LimitExceededException",
    "ProvisionedThroughputExceededException",
    "ReplicatedWriteConflictException",
    "RequestLimitExceeded",
    "ResourceInUseException",
    "Throttling",
    "ThrottlingException",
    "TransactionConflictException",
    "TransactionInProgressException",
}
_CREDENTIALS: Final = {
    "ExpiredTokenException": "the credentials have expired",
    "IncompleteSignatureException": "the credentials are malformed",
    "InvalidSignatureException": "the secret key does not fit the access key, or this machine's clock is wrong",
    "MissingAuthenticationToken": "the request had no credentials",
    "RequestExpired": "this machine's clock is wrong",
    "UnrecognizedClientException": "the access key or the session token is not known",
}
_PARTITION_KEY: Final = f'a table whose partition key is "{KEY}" of type S, without a sort key'
_ADVICE: Final = {
    "ResourceNotFoundException": f"Make {_PARTITION_KEY}, or call create_table() of the store.",
    "AccessDeniedException": "Allow dynamodb:GetItem and dynamodb:PutItem on the table, and dynamodb:Scan for lists.",
    "ValidationException": f"Locks need {_PARTITION_KEY}.",
}
_CONFIGURED: Final = (
    exceptions.NoCredentialsError,
    exceptions.PartialCredentialsError,
    exceptions.ProfileNotFound,
    exceptions.ConfigParseError,
)
_NOT_SENT: Final = (
    exceptions.ConnectTimeoutError,
    exceptions.CredentialRetrievalError,
    exceptions.MetadataRetrievalError,
    exceptions.ProxyConnectionError,
    exceptions.SSOError,
    exceptions.TokenRetrievalError,
)
_NOT_CONNECTED: Final = ("ClientConnectorError", "NameResolutionError", "NewConnectionError", "gaierror")
"""Of aiohttp, urllib3 and socket: aiobotocore raises an EndpointConnectionError also for a connection that was lost."""

_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")
_NO_HTTP: Final = ("BadStatusLine", "BadHttpMessage", "ClientResponseError")
"""Of http.client and aiohttp: what answers does not speak HTTP, or the answer was damaged."""

_SERVER_ERROR: Final = 500
_NOT_THERE: Final = (404, 405, 501)
"""What another web server answers, and DynamoDB never does."""


class Failures(AnyFailures):
    """Makes the errors of one store."""

    def _of(self, error: BaseException, *, sent: bool) -> StoreError:
        if isinstance(error, exceptions.ClientError):
            return self._of_reply(error)
        return self._before_sending(error, sent=sent) or self.unanswered(_reason(_first(error)))

    def shown(self, error: Exception) -> Exception | None:
        """Return the cause to be shown; None if its text may have a session token."""
        return None if code_of(error) == "InvalidSignatureException" else error

    def too_late(self) -> StoreUnavailable:
        """Return the error of a write that was refused, and for which there is no time to try it again."""
        return StoreUnavailable(f"{self._location} was too slow to be asked again", sent=False)

    def _before_sending(self, error: BaseException, *, sent: bool) -> StoreError | None:
        """Tell what was in the way; None: the request may have been sent."""
        if isinstance(error, _CONFIGURED):
            why = str(error).rstrip(".")
            hint = "Configure them as for boto3: AWS_ACCESS_KEY_ID, AWS_PROFILE, ~/.aws or a role"
            return StoreError(f"{self._location} can't be asked without AWS credentials ({why}). {hint}.")
        first = _first(error)
        if isinstance(error, exceptions.SSLError) and "verify failed" in str(first):
            return StoreError(f"{self._location} has a certificate that is not trusted.")
        if any(word in str(first) for word in _NO_TLS):
            return StoreError(f"{self._location} does not speak TLS. Use http:// in its endpoint.")
        kinds = {kind.__name__ for kind in type(first).__mro__}
        if not sent or isinstance(error, _NOT_SENT) or not kinds.isdisjoint(_NOT_CONNECTED):
            late = isinstance(error, exceptions.ConnectTimeoutError)
            return self.unreachable("no answer in time" if late else _reason(first))
        return None

    def _of_reply(self, error: exceptions.ClientError) -> StoreError:
        where, code = self._location, code_of(error)
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        if code in _NOT_APPLIED:
            return self.not_now(code)
        if status in _NOT_THERE:
            return StoreError(f"{where} does not answer as DynamoDB does (HTTP status {status}). Check the endpoint.")
        if status >= _SERVER_ERROR or not code or code.isdigit():
            return self.unanswered(f"error {code or status}")
        if code in _CREDENTIALS:
            return StoreError(f"{where} has refused the credentials: {_CREDENTIALS[code]}.")
        message = str(error.response["Error"].get("Message", "")).rstrip(".")
        return self.refused(f"{code}: {message}", _ADVICE.get(code, ""))


def code_of(error: BaseException) -> str:
    """Return the code of an answer; "" for any other error."""
    response = error.response if isinstance(error, exceptions.ClientError) else {}
    return str(response.get("Error", {}).get("Code", ""))


def _first(error: BaseException) -> BaseException:
    """Find what began a chain of errors."""
    found = getattr(error, "kwargs", {}).get("error")
    return found if isinstance(found, BaseException) else error


def _reason(error: BaseException) -> str:
    """Say it in a few words, without the address that urllib3 and aiohttp name."""
    below = getattr(error, "os_error", None) or error.__cause__ or error.__context__
    if not {type(each).__name__ for each in (error, below)}.isdisjoint(_NO_HTTP):
        return "what answers does not speak HTTP; check the endpoint"
    return reason(below if isinstance(below, OSError) else error)[:200]
