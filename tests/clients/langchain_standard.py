"""LangChain's own tests of chat models, for the pytest of its environment: TRNRT_URL says where the server is.

What the server does not serve is told by TRNRT_SERVES, a list by commas of tool_choice and structured_output;
TRNRT_BLANKS are the ids of blanks: a model that knows no JSON writes as much white space as a schema allows.
"""

import os
from typing import Literal

import pytest
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests
from openai import LengthFinishReasonError
from pydantic import BaseModel

SERVES = os.environ["TRNRT_SERVES"].split(",")
TOO_SMALL = "the shipped model does not copy names of tools and of arguments from its prompt"
ENDLESS = "the shipped model does not end a string that a schema leaves to it"


class Verdict(BaseModel):
    """What even a small model can say: every value is one of a few."""

    word: Literal["yes", "no"]
    grade: Literal[1, 2, 3]


class TestServer(ChatModelIntegrationTests):
    """The suite; tests that judge the model rather than the server may fail."""

    @property
    def chat_model_class(self) -> type[ChatOpenAI]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, object]:
        return {
            "model": "glm-5.3-flash-demo",
            "base_url": os.environ["TRNRT_URL"] + "/v1",
            "api_key": "none",
            "temperature": 0,
            "max_tokens": 600,
            "logit_bias": {int(token_id): -50 for token_id in os.environ["TRNRT_BLANKS"].split(",") if token_id},
            "stream_usage": True,
        }

    @property
    def has_tool_choice(self) -> bool:
        return "tool_choice" in SERVES

    @property
    def has_structured_output(self) -> bool:
        return "structured_output" in SERVES

    @pytest.mark.skipif(not {"structured_output", "tool_choice"} <= set(SERVES), reason="it is not served")
    @pytest.mark.parametrize("method", ["json_schema", "function_calling"])
    def test_an_answer_has_the_type_that_was_asked_for(self, model: ChatOpenAI, method: str) -> None:
        answer = model.with_structured_output(Verdict, method=method).invoke("Is Paris in France?")
        assert isinstance(answer, Verdict)


for _name in (
    "test_tool_calling",
    "test_tool_calling_async",
    "test_bind_runnables_as_tools",
    "test_tool_calling_with_no_arguments",
    "test_structured_few_shot_examples",
    "test_agent_loop",
    "test_unicode_tool_call_integration",
):
    _mark = pytest.mark.xfail(reason=TOO_SMALL, strict=False)
    setattr(TestServer, _name, _mark(getattr(ChatModelIntegrationTests, _name)))

for _name in (
    "test_structured_output",
    "test_structured_output_async",
    "test_structured_output_pydantic_2_v1",
    "test_structured_output_optional_param",
):
    # Whatever else goes wrong is the server's fault.
    _mark = pytest.mark.xfail(reason=ENDLESS, raises=LengthFinishReasonError, strict=False)
    setattr(TestServer, _name, _mark(getattr(ChatModelIntegrationTests, _name)))
