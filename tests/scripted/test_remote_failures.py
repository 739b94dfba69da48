"""What an engine behind this server says when it fails is what every API's clients hear: status, words, Retry-After."""

import pytest

from stages.errors import EngineFailure, InvalidRequest, RemoteFailure
from stages.ingress.dialects.openai_common import raise_failure
from stages.ingress.error_bodies import message_of
from stages.ingress.respond import describe
from stages.messages import Finish


def test_a_failure_with_a_status_is_told_in_the_engines_words() -> None:
    with pytest.raises(RemoteFailure) as caught:
        raise_failure(Finish("error", None, "slow down", 429, is_remote=True, retry_after_s=7))
    status, told, headers = describe(caught.value)
    assert (status, message_of(told), headers) == (429, "slow down", {"retry-after": "7"})


def test_a_failure_of_this_servers_own_engine_is_told_in_general_words() -> None:
    with pytest.raises(EngineFailure) as caught:
        raise_failure(Finish("error", None, "/secret", 500))
    assert not isinstance(caught.value, RemoteFailure)
    status, told, _ = describe(caught.value)
    assert (status, "secret" in message_of(told)) == (500, False)


def test_a_refusal_of_the_request_itself_stays_a_400() -> None:
    with pytest.raises(InvalidRequest, match="too long"):
        raise_failure(Finish("error", None, "too long", 400))


def test_a_failure_without_retry_after_has_no_such_header() -> None:
    assert describe(RemoteFailure("slow", 504))[2] == {}
