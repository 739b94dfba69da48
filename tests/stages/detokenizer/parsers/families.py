"""How each family writes calls: what a model of it would say, made from names and arguments."""

import json
from collections.abc import Callable

from attrs import frozen

Arguments = dict[str, object]
Call = tuple[str, Arguments]


@frozen
class Family:
    """Writes one call inside the wrapper, and puts the wrapper around several."""

    call: Callable[[str, Arguments, int], str]
    opening: str = ""
    closing: str = ""
    between: str = ""
    # Whether a wrapper holds several calls; else each call has its own.
    shares_wrapper: bool = True
    # Whether values keep the model's own JSON.
    keeps_json: bool = False
    # What of a call's end may be cut off and the call is whole all the same.
    is_whole_without: str = ""

    def write(self, *calls: Call) -> str:
        written = [self.call(name, arguments, index) for index, (name, arguments) in enumerate(calls)]
        if self.shares_wrapper:
            return self.opening + self.between.join(written) + self.closing
        return self.between.join(self.opening + each + self.closing for each in written)


def dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def plain(value: object) -> str:
    return value if isinstance(value, str) else dumps(value)


def json_call(arguments_key: str = "arguments") -> Callable[[str, Arguments, int], str]:
    return lambda name, arguments, _: dumps({"name": name, arguments_key: arguments})


def xml(head: str, parameter: str, end_parameter: str, end: str) -> Callable[[str, Arguments, int], str]:
    def write(name: str, arguments: Arguments, _: int) -> str:
        body = "".join(parameter.format(key) + plain(value) + end_parameter for key, value in arguments.items())
        return head.format(name) + body + end

    return write


def dsml(name: str, arguments: Arguments, _: int) -> str:
    lines = [f'<｜DSML｜invoke name="{name}">\n']
    for key, value in arguments.items():
        is_string = "true" if isinstance(value, str) else "false"
        lines.append(f'<｜DSML｜parameter name="{key}" string="{is_string}">{plain(value)}</｜DSML｜parameter>\n')
    return "".join((*lines, "</｜DSML｜invoke>\n"))


def glm(newline: str) -> Callable[[str, Arguments, int], str]:
    def write(name: str, arguments: Arguments, _: int) -> str:
        pairs = (
            f"<arg_key>{key}</arg_key>{newline}<arg_value>{plain(value)}</arg_value>{newline}"
            for key, value in arguments.items()
        )
        return name + newline + "".join(pairs)

    return write


def python(name: str, arguments: Arguments, _: int) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def kimi_k2(name: str, arguments: Arguments, index: int) -> str:
    head = f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>"
    return head + dumps(arguments) + "<|tool_call_end|>"


def kimi_k3(name: str, arguments: Arguments, index: int) -> str:
    types = {str: "string", bool: "boolean", int: "number", float: "number", list: "array", dict: "object"}
    body = "".join(
        f'<|open|>argument key="{key}" type="{types.get(type(value), "null")}"<|sep|>{plain(value)}'
        "<|close|>argument<|sep|>"
        for key, value in arguments.items()
    )
    return f'<|open|>call tool="{name}" index="{index + 1}"<|sep|>{body}<|close|>call<|sep|>'


def gemma_value(value: object) -> str:
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{gemma_value(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(gemma_value, value)) + "]"
    return dumps(value)


M3 = "]<]minimax[>["


def minimax_m3(name: str, arguments: Arguments, _: int) -> str:
    body = "".join(m3_element(key, value) for key, value in arguments.items())
    return f'{M3}<invoke name="{name}">{body}{M3}</invoke>\n'


def m3_element(name: str, value: object) -> str:
    inner = plain(value)
    if isinstance(value, dict):
        inner = "".join(m3_element(key, each) for key, each in value.items())
    elif isinstance(value, list) and value:
        inner = "".join(m3_element("item", each) for each in value)
    return f"{M3}<{name}>{inner}{M3}</{name}>"


def harmony(name: str, arguments: Arguments, _: int) -> str:
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{dumps(arguments)}<|call|>"


QWEN = Family(
    xml("<function={}>\n", "<parameter={}>\n", "\n</parameter>\n", "</function>"),
    "<tool_call>\n",
    "\n</tool_call>",
    "\n",
    shares_wrapper=False,
    is_whole_without="\n</tool_call>",
)
HERMES = Family(
    json_call(),
    "<tool_call>\n",
    "\n</tool_call>",
    "\n",
    shares_wrapper=False,
    keeps_json=True,
    is_whole_without="\n</tool_call>",
)
V3_HEAD, V3_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
V3_AROUND = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")

FAMILIES: dict[str, Family] = {
    "apertus2509": Family(
        lambda name, arguments, _: dumps({name: arguments}),
        "<|tools_prefix|>[",
        "]<|tools_suffix|>",
        ", ",
        keeps_json=True,
        is_whole_without="<|tools_suffix|>",
    ),
    "deepseek_v3": Family(
        lambda name, arguments, _: f"{V3_HEAD}function<｜tool▁sep｜>{name}\n```json\n{dumps(arguments)}\n```{V3_END}",
        *V3_AROUND,
        "\n",
        is_whole_without=f"\n```{V3_END}{V3_AROUND[1]}",
    ),
    "deepseek_v3_1": Family(
        lambda name, arguments, _: f"{V3_HEAD}{name}<｜tool▁sep｜>{dumps(arguments)}{V3_END}",
        *V3_AROUND,
        is_whole_without=f"{V3_END}{V3_AROUND[1]}",
    ),
    "deepseek_v3_2": Family(
        dsml, "<｜DSML｜function_calls>\n", "</｜DSML｜function_calls>", is_whole_without="\n</｜DSML｜function_calls>"
    ),
    "deepseek_v4": Family(
        dsml, "\n\n<｜DSML｜tool_calls>\n", "</｜DSML｜tool_calls>", is_whole_without="\n</｜DSML｜tool_calls>"
    ),
    "deepseek_v4_1": Family(
        lambda name, arguments, index: dsml(name, arguments, index).replace("｜DSML｜", "｜DSML｜ "),
        "\n\n<｜DSML｜ calls>\n",
        "</｜DSML｜ calls>",
        is_whole_without="\n</｜DSML｜ calls>",
    ),
    "default": Family(
        json_call(), "<TOOLCALL>[", "]</TOOLCALL>", ", ", keeps_json=True, is_whole_without="]</TOOLCALL>"
    ),
    "gemma4": Family(
        lambda name, arguments, _: f"<|tool_call>call:{name}{gemma_value(arguments)}<tool_call|>",
        is_whole_without="<tool_call|>",
    ),
    "glm45": Family(glm("\n"), "<tool_call>", "</tool_call>", "\n", shares_wrapper=False),
    "glm47": Family(glm(""), "<tool_call>", "</tool_call>", shares_wrapper=False),
    "harmony": Family(harmony, between="<|start|>assistant", is_whole_without="<|call|>"),
    "hermes": HERMES,
    "inkling": Family(
        lambda name, arguments, _: (
            f"<|message_model|>{name}<|content_invoke_tool_json|>"
            + dumps({"name": name, "args": arguments})
            + "<|end_message|>"
        ),
        keeps_json=True,
        is_whole_without="<|end_message|>",
    ),
    "interns1": Family(
        json_call("parameters"),
        "<|action_start|><|plugin|>\n",
        "<|action_end|>\n",
        shares_wrapper=False,
        keeps_json=True,
        is_whole_without="<|action_end|>\n",
    ),
    "jamba": Family(
        json_call(), "<tool_calls>[", "]</tool_calls>", ", ", keeps_json=True, is_whole_without="]</tool_calls>"
    ),
    "kimi_k2": Family(
        kimi_k2,
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        is_whole_without="<|tool_call_end|><|tool_calls_section_end|>",
    ),
    "kimi_k3": Family(
        kimi_k3, "<|open|>tools<|sep|>", "<|close|>tools<|sep|>", is_whole_without="<|close|>tools<|sep|>"
    ),
    "lfm2": Family(python, "<|tool_call_start|>[", "]<|tool_call_end|>", ", ", is_whole_without="<|tool_call_end|>"),
    "llama3_json": Family(json_call("parameters"), "<|python_tag|>", between="; ", keeps_json=True),
    "minimax_m2": Family(
        xml('<invoke name="{}">\n', '<parameter name="{}">', "</parameter>\n", "</invoke>\n"),
        "<minimax:tool_call>\n",
        "</minimax:tool_call>",
        is_whole_without="\n</minimax:tool_call>",
    ),
    "minimax_m3": Family(minimax_m3, f"{M3}<tool_call>\n", f"{M3}</tool_call>", is_whole_without=f"\n{M3}</tool_call>"),
    "mistral": Family(
        json_call(), "[TOOL_CALLS][", "][/TOOL_CALLS]", ", ", keeps_json=True, is_whole_without="][/TOOL_CALLS]"
    ),
    "nemotron_deci": Family(
        json_call(), "<TOOLCALL>[", "]</TOOLCALL>", ", ", keeps_json=True, is_whole_without="]</TOOLCALL>"
    ),
    "nemotron_nano": QWEN,
    "phi4": Family(json_call(), "functools[", "]", ", ", keeps_json=True, is_whole_without="]"),
    "pythonic": Family(python, "[", "]", ", "),
    "qwen25": HERMES,
    "qwen3_coder": QWEN,
    "step3": Family(
        xml(
            '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{}">',
            '<steptml:parameter name="{}">',
            "</steptml:parameter>",
            "</steptml:invoke><｜tool_call_end｜>",
        ),
        "<｜tool_calls_begin｜>",
        "<｜tool_calls_end｜>",
        "\n",
        is_whole_without="<｜tool_call_end｜><｜tool_calls_end｜>",
    ),
}
