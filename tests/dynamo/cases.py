"""Bodies of chats whose prompts, sampling and constraints are compared with Dynamo's."""

from typing import Any

Body = dict[str, Any]


def user(content: object = "Hello there") -> Body:
    return {"role": "user", "content": content}


def system(content: object = "Be brief.", role: str = "system") -> Body:
    return {"role": role, "content": content}


def answer(content: object = "Good day", **more: object) -> Body:
    return {"role": "assistant", "content": content, **more}


def call(arguments: object = '{"city": "Paris"}', call_id: str = "123456789", name: str = "weather") -> Body:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(content: object = "It rains.", call_id: str = "123456789") -> Body:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def texts(*parts: str) -> list[Body]:
    return [{"type": "text", "text": part} for part in parts]


CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "weather", "description": "Weather of a city", "parameters": CITY}
CLOCK = {"name": "clock", "description": "The time", "parameters": {"type": "object", "properties": {}}}


def function(definition: Body, **more: object) -> Body:
    return {"type": "function", "function": {**definition, **more}}


TOOLS = [function(WEATHER)]
NAMED = {"type": "function", "function": {"name": "weather"}}


def called(*calls: Body, content: object = "", **more: object) -> list[Body]:
    """A question, the calls it led to and what they gave."""
    results = [result(call_id=each["id"]) for each in calls or (call(),)]
    return [user(), answer(content, tool_calls=list(calls or (call(),)), **more), *results]


AWKWARD = {
    "type": "object",
    "properties": {"x": {"type": "number", "minimum": 1e-06, "maximum": 1e22, "description": 'Where\'s <it> & "how"?'}},
    "items": [1.0, -0.5, None, True, "é🙂"],
}

MESSAGES: dict[str, list[Body]] = {
    "a user's": [user()],
    "system, user": [system(), user()],
    "developer, user": [system(role="developer"), user()],
    "system, developer, user": [system(), system("Be kind.", "developer"), user()],
    "a system later on": [system(), user(), answer(), system("Be kind."), user("And now?")],
    "a system at the end": [user(), system("Be kind.")],
    "a developer later on": [user(), answer(), system("Be kind.", "developer"), user("And now?")],
    "two users": [user("One"), user("Two")],
    "three turns": [user(), answer(), user("And now?")],
    "an assistant's last": [user(), answer()],
    "white space": [user("  a\n"), answer("\n b \n\n"), user("\n\n")],
    "empty text": [user("")],
    "unicode and quotes": [user("é🙂 \"x\" 'y' <z> & {{ 1 }} \\n")],
    "one part": [user(texts("Hello"))],
    "two parts": [user(texts("Hello", "there"))],
    "two parts of a system and an answer": [system(texts("a", "b")), user(), answer(texts("c", "d")), user()],
    "no parts": [user([])],
    "a name": [{**user(), "name": "Ann"}],
    "a call": called(),
    "a call, arguments an object": called(call({"city": "Paris"})),
    "a call, arguments spaced": called(call('{"city":"Paris",  "n": 1.50}')),
    "a call, arguments with a big integer": called(call('{"n": 123456789012345678901234567890}')),
    "a call, arguments with floats": called(call('{"a": 1e-6, "b": 1.0, "c": 1e22}')),
    "a call, arguments with a key items": called(call('{"items": [1], "keys": "k"}')),
    "a call, no arguments": called(call("")),
    "a call, content null": called(content=None),
    "a call, content": called(content="Let me see."),
    "a call, answered": [*called(), answer("It rains."), user("And now?")],
    "a result in parts": [*called()[:2], result(texts("It", "rains."))],
    "a result of JSON": [*called()[:2], result('{"a": "<b>"}')],
    "two calls": called(call(), call('{"city": "Rome"}', "987654321")),
    "reasoning": [user(), answer(reasoning_content="I think."), user("And now?")],
    "reasoning last": [user(), answer(reasoning_content="I think.")],
    "reasoning and a call": called(reasoning_content="I think."),
    "reasoning of empty text": [user(), answer(reasoning_content=""), user("And now?")],
    "reasoning in the text": [user(), answer("<think>\nI think.\n</think>\n\nGood day"), user("And now?")],
}
CONTINUED: dict[str, list[Body]] = {
    "words": [user(), answer("Good")],
    "white space": [user(), answer("Good ")],
    "a thought": [user(), answer("<think>\nWell")],
}
SWITCHES: dict[str, Body] = {
    "enable_thinking false": {"chat_template_kwargs": {"enable_thinking": False}},
    "enable_thinking true": {"chat_template_kwargs": {"enable_thinking": True}},
    "thinking false": {"chat_template_kwargs": {"thinking": False}},
    "thinking true": {"chat_template_kwargs": {"thinking": True}},
    "date_string": {"chat_template_kwargs": {"date_string": "2 Feb 2026"}},
    "effort none": {"reasoning_effort": "none"},
    "effort low": {"reasoning_effort": "low"},
    "effort high": {"reasoning_effort": "high"},
}
OFFERS: dict[str, Body] = {
    "a tool": {"tools": TOOLS},
    "two tools": {"tools": [function(WEATHER), function(CLOCK)]},
    "a tool without description": {"tools": [function({"name": "f", "parameters": CITY})]},
    "a tool without parameters": {"tools": [function({"name": "f", "description": "F"})]},
    "a tool, parameters empty": {"tools": [function({"name": "f", "description": "F", "parameters": {}})]},
    "a tool with keys of its own": {"tools": [function({"parameters": CITY, "zeta": 1, "name": "f"})]},
    "a strict tool": {"tools": [function(WEATHER, strict=True)]},
    "an awkward schema": {"tools": [function({"name": "f", "description": "é", "parameters": AWKWARD})]},
    "choice auto": {"tools": TOOLS, "tool_choice": "auto"},
    "choice none": {"tools": TOOLS, "tool_choice": "none"},
    "choice required": {"tools": TOOLS, "tool_choice": "required"},
    "choice named": {"tools": [function(WEATHER), function(CLOCK)], "tool_choice": NAMED},
}


def prompts() -> dict[str, Body]:
    """Bodies whose prompts are compared, by name."""
    return {
        **{name: {"messages": messages} for name, messages in MESSAGES.items()},
        **{
            f"{name}, the tool offered": {"messages": MESSAGES[name], "tools": TOOLS}
            for name in ("system, user", "a call", "a call, content null", "two calls", "a call, answered")
        },
        **{
            f"going on from {name}": {
                "messages": messages,
                "continue_final_message": True,
                "add_generation_prompt": False,
            }
            for name, messages in CONTINUED.items()
        },
        **{name: {"messages": [system(), user()], **switch} for name, switch in SWITCHES.items()},
        **{name: {"messages": [user()], **offer} for name, offer in OFFERS.items()},
    }


SAMPLING: dict[str, Body] = {
    "nothing": {},
    "temperature": {"temperature": 0.3},
    "temperature 0": {"temperature": 0},
    "top_p": {"top_p": 0.4},
    "top_k": {"top_k": 7},
    "top_k -1": {"top_k": -1},
    "min_p": {"min_p": 0.2},
    "penalties": {"frequency_penalty": 0.5, "presence_penalty": -0.5, "repetition_penalty": 1.3},
    "seed": {"seed": 11},
    "max_tokens": {"max_tokens": 9},
    "max_completion_tokens": {"max_tokens": 9, "max_completion_tokens": 5},
    "min_tokens": {"min_tokens": 3, "max_tokens": 9},
    "ignore_eos": {"ignore_eos": True},
    "a stop": {"stop": "END"},
    "stops": {"stop": ["END", "ND"]},
    "stop ids": {"stop_token_ids": [5, 6]},
    "logit_bias": {"logit_bias": {"5": 2}},
    "logprobs": {"logprobs": True, "top_logprobs": 3},
    "JSON": {"response_format": {"type": "json_object"}},
    "a schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": CITY}}},
    "keeping special tokens": {"skip_special_tokens": False},
}

CLOSED = {**CITY, "additionalProperties": False}
STRICT = function(WEATHER, parameters=CLOSED, strict=True)
LOOSE = function(WEATHER, strict=False)
CONSTRAINTS: dict[str, Body] = {
    "auto": {"tools": TOOLS},
    "auto, strict": {"tools": [STRICT]},
    "auto, one strict": {"tools": [STRICT, function(CLOCK)]},
    "auto, not strict": {"tools": [LOOSE]},
    "none": {"tools": TOOLS, "tool_choice": "none"},
    "required": {"tools": TOOLS, "tool_choice": "required"},
    "required, two tools": {"tools": [function(WEATHER), function(CLOCK)], "tool_choice": "required"},
    "required, strict": {"tools": [STRICT], "tool_choice": "required"},
    "required, not strict": {"tools": [LOOSE], "tool_choice": "required"},
    "named": {"tools": [function(WEATHER), function(CLOCK)], "tool_choice": NAMED},
    "auto, strict, one call": {"tools": [STRICT], "parallel_tool_calls": False},
    "required, one call": {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
}
