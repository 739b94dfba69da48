"""What models say, right and wrong, for each format; the golden table has what comes of it."""

import json

from tests.stages.detokenizer.parsers.families import FAMILIES, Family

WEATHER = ("get_weather", {"city": "Paris", "days": 3})
TIME = ("get_time", {"tz": "UTC"})
NESTED = (
    "get_weather",
    {
        "city": 'q " \\ é 🙂 ; , } ] {x} [y] </tool_call> <arg_value> `` ```',
        "days": 2**64 + 1,
        "metric": True,
        "tags": ["a, b", 1, None, {"k": []}],
        "place": {"name": "f", "arguments": {"deep": [1.5, False]}},
    },
)


def common(family: Family) -> dict[str, str]:
    """What every format is asked."""
    one, two = family.write(WEATHER), family.write(WEATHER, TIME)
    return {
        "one call": one,
        "two calls": two,
        "the same call twice": family.write(TIME, TIME),
        "a call without arguments": family.write(("get_time", {})),
        "a tool there is not": family.write(("un.known-tool", {"a": 1})),
        "nested, escaped and large values": family.write(NESTED),
        "text before": "Let me check. " + one,
        "text behind": one + " Done.",
        "text around and between": "Hi. " + one + " mid " + family.write(TIME) + " end",
        "white space between": one + "\n \n" + family.write(TIME) + "\n",
        "the end of the last cut off": two[:-8],
        "cut off in the middle": "Hi. " + one[: len(one) * 2 // 3],
        "a whole call and half of one": one + family.write(NESTED)[:60],
        "a beginning that is none": "tail " + one[:5],
        "plain text": "If a < b [1] then {x} and <b>bold</b>, `[y](z)`, f(1); done.",
        "nothing": "",
        "white space": " \n",
    }


def tool_call(text: str) -> str:
    return f"<tool_call>\n{text}\n</tool_call>"


HERMES_CASES = {
    "arguments first": tool_call('{"arguments": {"name": "x"}, "name": "get_time"}'),
    "parameters for arguments": tool_call('{"name": "get_time", "parameters": {"tz": "U"}}'),
    "name alone": tool_call('{"name": "get_time"}'),
    "arguments in a string": tool_call('{"name": "get_time", "arguments": "{\\"tz\\": \\"U\\"}"}'),
    "the end's tag in a value": tool_call('{"name": "get_time", "arguments": {"tz": "</tool_call>"}}') + " x",
    "trailing comma": tool_call('{"name": "get_time", "arguments": {"tz": "U",}}') + " x",
    "a quote that never ends": tool_call('{"name": "get_time", "arguments": {"tz": "U}}') + " x",
    "no JSON": tool_call("not json") + " x",
    "empty block": tool_call("") + " x",
    "end without beginning": "Hi.</tool_call> x",
    "beginning without end": tool_call("{}")[:-12] + tool_call(json.dumps({"name": "get_time"})),
    "bare": '{"name": "get_time", "arguments": {"tz": "U"}}',
    "bare, of no tool": '{"name": "Bob", "arguments": {}}',
    "bare, other JSON": '{"answer": 42}',
    "bare list": '[{"name": "get_time", "arguments": {"tz": "U"}}]',
    "bare, cut off": '{"name": "get_time", "arguments": {"tz"',
}

CODER_CASES = {
    "bare function": "<function=get_time>\n<parameter=tz>\nU\n</parameter>\n</function>",
    "entities": tool_call("<function=get_time>\n<parameter=tz>\na &amp; b\n</parameter>\n</function>"),
    "null for a string": tool_call("<function=get_weather>\n<parameter=city>\nnull\n</parameter>\n</function>"),
    "null where it may be": tool_call("<function=get_weather>\n<parameter=note>\nnull\n</parameter>\n</function>"),
    "a word for an integer": tool_call("<function=get_weather>\n<parameter=days>\nabc\n</parameter>\n</function>"),
    "an array for a string": tool_call('<function=get_time>\n<parameter=tz>\n["a"]\n</parameter>\n</function>'),
    "Python's words": tool_call("<function=get_weather>\n<parameter=metric>\nTrue\n</parameter>\n</function>"),
    "the call's end in a value": tool_call(
        "<function=get_time>\n<parameter=tz>\n</function>\n</parameter>\n</function>"
    ),
    "a value without end": tool_call("<function=get_time>\n<parameter=tz>\nU\n</function>") + " x",
    "a value without end, and another call": (
        tool_call("<function=get_time>\n<parameter=tz>\nU\n</function>")
        + tool_call("<function=get_weather>\n<parameter=days>\n3\n</parameter>\n</function>")
    ),
    "first value without end": tool_call(
        "<function=get_weather>\n<parameter=city>\nU\n<parameter=days>\n3\n</parameter>\n</function>"
    ),
    "no function": tool_call("<get_time>x</get_time>") + " x",
}

GLM_CASES = {
    "newlines between": tool_call("get_time\n<arg_key>tz</arg_key>\n<arg_value>U</arg_value>"),
    "value without beginning": "<tool_call>get_time<arg_key>tz</arg_key>U</arg_value></tool_call>",
    "name alone": "<tool_call>get_time</tool_call>",
    "key without value": "<tool_call>get_time<arg_key>tz</arg_key></tool_call>",
    "a literal backslash-n": "<tool_call>get_time\\n<arg_key>tz</arg_key>\\n<arg_value>U</arg_value>\\n</tool_call>",
    "a number for a string": "<tool_call>get_time<arg_key>tz</arg_key><arg_value>7</arg_value></tool_call>",
    "entities stay": "<tool_call>get_time<arg_key>tz</arg_key><arg_value>a &amp; b</arg_value></tool_call>",
    "cut off in a value": "<tool_call>get_time<arg_key>tz</arg_key><arg_value>U</arg",
    "value without end": "<tool_call>get_time<arg_key>tz</arg_key><arg_value>U</tool_call> x",
}

SPECIAL: dict[str, dict[str, str]] = {
    "hermes": HERMES_CASES,
    "qwen25": {"bare": HERMES_CASES["bare"]},
    "llama3_json": {
        "bare": '{"name": "get_time", "parameters": {"tz": "U"}}',
        "bare, two": '{"name": "get_time", "parameters": {"tz": "U"}}; {"name": "get_time", "parameters": {}}',
        "code": "<|python_tag|>print(1)",
        "separator in a value": '<|python_tag|>{"name": "get_time", "parameters": {"tz": "; {"}}; {"name": "get_time"}',
    },
    "default": {"Llama's tag": '<|python_tag|>{"name": "get_time", "parameters": {"tz": "U"}}'},
    "mistral": {
        "v11": '[TOOL_CALLS]get_time{"tz": "U"}[TOOL_CALLS]get_weather{"city": "P"}',
        "v13": '[TOOL_CALLS]get_time[ARGS]{"tz": "U"}[TOOL_CALLS]get_weather[ARGS]{"city": "P"}',
        "v13 with an id": '[TOOL_CALLS]get_time[CALL_ID]a1b2c3d4e[ARGS]{"tz": "U"}',
        "without an end": '[TOOL_CALLS][{"name": "get_time", "arguments": {"tz": "U"}}]',
        "bare list": '[{"name": "get_time", "arguments": {"tz": "U"}}]',
        "v11, cut off": '[TOOL_CALLS]get_time{"tz"',
    },
    "qwen3_coder": CODER_CASES,
    "glm45": GLM_CASES,
    "glm47": GLM_CASES,
    "deepseek_v3_1": {
        "without the outer tags": '<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{"tz": "U"}<｜tool▁call▁end｜>',
        "no JSON": FAMILIES["deepseek_v3_1"].write(TIME).replace('{"tz": "UTC"}', "no") + " x",
    },
    "deepseek_v4": {
        "the empty line before the block": "Hello" + FAMILIES["deepseek_v4"].write(TIME),
        "without the block": FAMILIES["deepseek_v4"].call(*TIME, 0),
        "a string that is a number": FAMILIES["deepseek_v4"].write(("get_weather", {"days": "7"})),
        "no JSON": FAMILIES["deepseek_v4"].write(("get_weather", {"days": 0})).replace(">0<", ">{bad<"),
    },
    "minimax_m2": {
        "bare": FAMILIES["minimax_m2"].call(*WEATHER, 0),
        "entities": FAMILIES["minimax_m2"].write(("get_time", {"tz": "a &amp; b"})),
    },
    "kimi_k2": {
        "singular section": FAMILIES["kimi_k2"].write(TIME).replace("calls_section", "call_section"),
        "without a section": FAMILIES["kimi_k2"].call(*TIME, 0),
        "bare id": FAMILIES["kimi_k2"].write(TIME).replace("functions.get_time:0", "get_time:3"),
        "no JSON": FAMILIES["kimi_k2"].write(TIME).replace('{"tz": "UTC"}', "{bad") + " x",
        "empty section": "<|tool_calls_section_begin|><|tool_calls_section_end|> x",
    },
    "pythonic": {
        "brackets in a string": '[get_time(tz="a)], b(")]',
        "Python's words": "[get_weather(metric=True, note=None, tags=[1, {'a': (2,)}])]",
        "JSON's words": "[get_weather(metric=true, note=null)]",
        "without brackets": 'get_time(tz="U")',
        "no calls": "[1, 2, 3]",
        "tags around": '<|python_start|>[get_time(tz="U")]<|python_end|>',
        "no values": "[f(x) for x in y]",
    },
    "gemma4": {
        "bare word": "<|tool_call>call:get_weather{city:Paris,days:3}<tool_call|>",
        "no object": "<|tool_call>call:get_weather<tool_call|> x",
    },
    "harmony": {
        "with other messages": (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Hi<|return|>"
        ),
        "recipient before the channel": (
            '<|start|>assistant to=functions.get_time<|channel|>commentary json<|message|>{"tz": "U"}<|call|>'
        ),
        "in the analysis": '<|channel|>analysis to=functions.get_time<|message|>{"tz": "U"}',
    },
}


def cases(name: str) -> dict[str, str]:
    return common(FAMILIES[name]) | SPECIAL.get(name, {})
