"""The error tree; one branch for each kind of catcher.

TrnrtError
|-- RequestError          the client's to mend; every dialect maps it to its own error shape
|   |-- InvalidRequest       400, names the field
|   |-- ContextOverflow      400, prompt (+ requested output) does not fit
|   |-- Unauthorized         401, no key or a wrong one
|   |-- NotFound             404, unknown model or path
|   |-- MethodNotAllowed     405, lists what is allowed
|   |-- BodyTooSlow          408
|   |-- BodyTooLarge         413
|-- Unavailable           503, come again: carries retry_after_s
|   |-- QueueFull            the request queue is full
|   |-- Draining             the server is stopping or not ready
|   |-- DeadlineExceeded     the request ran out of its own or the server's time
|   |-- PriorityRefused      a priority where there are none
|-- Aborted               500, an operator ended it, told by APIs that have no other word for that
|-- EngineFailure         500, the device or a stage died while the request ran
|   |-- RemoteFailure        any status, an engine behind this server refused or failed; its words are told
|-- StartupError          one line, exit 2, before anything listens
    |-- ConfigError          names the flag
    |-- CheckpointError      names the file or tensor
"""


class TrnrtError(Exception):
    """Base of every error this project raises on purpose."""


class RequestError(TrnrtError):
    """The client's to mend; status is the HTTP status, param the dotted path of the field or None."""

    status = 400
    code: str | None = None

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code


class InvalidRequest(RequestError):
    """A field is missing, of the wrong type, out of range or not served."""


class ContextOverflow(RequestError):
    """The prompt, alone or with the requested output, is longer than the context."""

    code = "context_length_exceeded"

    def __init__(
        self,
        message: str,
        *,
        prompt_tokens: int,
        requested_tokens: int | None,
        context_tokens: int,
        param: str | None = None,
    ) -> None:
        super().__init__(message, param)
        self.prompt_tokens = prompt_tokens
        self.requested_tokens = requested_tokens
        self.context_tokens = context_tokens


class Unauthorized(RequestError):
    """The call brings no key, or one that does not open its route."""

    status = 401
    code = "invalid_api_key"

    def __init__(self) -> None:
        super().__init__("Unauthorized")


class NotFound(RequestError):
    """No such model or path."""

    status = 404


class MethodNotAllowed(RequestError):
    """The path exists, the method does not."""

    status = 405


class BodyTooSlow(RequestError):
    """The request's body did not arrive in time."""

    status = 408


class BodyTooLarge(RequestError):
    """The request's body is over --max-request-bytes."""

    status = 413


class Unavailable(TrnrtError):
    """Try again after retry_after_s seconds."""

    status = 503
    retry_after_s = 1

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class QueueFull(Unavailable):
    """Every place in the queue is taken."""

    def __init__(self, message: str = "The request queue is full.") -> None:
        super().__init__(message)


class Draining(Unavailable):
    """The server is stopping."""

    def __init__(self, message: str = "The server is shutting down.") -> None:
        super().__init__(message)


class DeadlineExceeded(Unavailable):
    """The request did not finish within its deadline."""

    def __init__(self, message: str = "Request running timeout reached.") -> None:
        super().__init__(message)


class PriorityRefused(Unavailable):
    """The request has a priority and this server, which has none, is told not to ignore that."""

    def __init__(self) -> None:
        super().__init__("Using priority is disabled for this server. Please send a new request without a priority.")


class Aborted(TrnrtError):
    """An operator ended the request while it waited or ran."""

    message = "The request was aborted."


class EngineFailure(TrnrtError):
    """The engine cannot finish this request; the text is for the log, clients get a generic one."""


class RemoteFailure(EngineFailure):
    """The engine behind this server refused or failed; clients get its status and words, and when to come again."""

    def __init__(self, message: str, status: int = 500, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.retry_after_s = retry_after_s


class StartupError(TrnrtError):
    """The server cannot start; the message is one line."""


class ConfigError(StartupError):
    """A flag or a configuration key is wrong; the message names it."""


class CheckpointError(StartupError):
    """The model folder is incomplete or misshapen; the message names the file or tensor."""
