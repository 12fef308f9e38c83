"""What a request is answered with if it cannot be served."""

from collections.abc import Mapping
from typing import NamedTuple

RETRY_AFTER = "1"  # seconds


class RequestError(Exception):
    """A request that is refused.

    Args:
        status: HTTP status, a key of `CODES`.
        message: what is wrong with the request. It goes to the client only.

    Attributes:
        is_counted: whether the metrics have it.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.is_counted = False

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that belong to the status."""
        if self.status in (429, 503):
            return {"Retry-After": RETRY_AFTER}
        if self.status == 401:
            return {"WWW-Authenticate": "Bearer"}
        return {}


class Code(NamedTuple):
    """Names of a status."""

    grpc: str  # as TF Serving counts it
    openai: str  # the `type` of an error of OpenAI's


CODES = {
    400: Code("INVALID_ARGUMENT", "invalid_request_error"),
    401: Code("UNAUTHENTICATED", "authentication_error"),
    403: Code("PERMISSION_DENIED", "permission_error"),
    404: Code("NOT_FOUND", "not_found_error"),
    405: Code("UNIMPLEMENTED", "invalid_request_error"),
    408: Code("DEADLINE_EXCEEDED", "invalid_request_error"),
    413: Code("INVALID_ARGUMENT", "invalid_request_error"),
    415: Code("INVALID_ARGUMENT", "invalid_request_error"),
    429: Code("RESOURCE_EXHAUSTED", "rate_limit_error"),
    499: Code("CANCELLED", "invalid_request_error"),  # nobody reads it: the client has gone
    500: Code("INTERNAL", "server_error"),
    503: Code("UNAVAILABLE", "server_error"),
}
