"""Conversation formats older than chat templates: two roles, separators and stop strings, made into Jinja. Core.

`--chat-template` takes one by its public name, or a JSON file that describes one as SGLang's does; some models are
known by their names to be of one.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import field, frozen

from stages.errors import CheckpointError
from stages.settings import TemplateSource
from trnrt.folder_files import senseless

# Of each style: the system text, a turn, and what opens the answer's, in expressions of Jinja. `other` is the second
# separator, `at` the number of the turn.
_BY_TURN = "(sep if at is even else other)"
_STYLES: Mapping[str, tuple[str, str, str]] = {
    "ADD_COLON_SINGLE": ("system ~ sep", "role ~ ': ' ~ text ~ sep", "role ~ ':'"),
    "ADD_COLON_TWO": ("system ~ sep", f"role ~ ': ' ~ text ~ {_BY_TURN}", "role ~ ':'"),
    "ADD_COLON_SPACE_SINGLE": ("system ~ sep", "role ~ ': ' ~ text ~ sep", "role ~ ': '"),
    "ADD_NEW_LINE_SINGLE": ("(system ~ sep) if system else ''", "role ~ '\\n' ~ text ~ sep", "role ~ '\\n'"),
    "NO_COLON_SINGLE": ("system", "role ~ text ~ sep", "role"),
    "NO_COLON_TWO": ("system", f"role ~ text ~ {_BY_TURN}", "role"),
    "CHATML": ("(system ~ sep ~ '\\n') if system else ''", "role ~ '\\n' ~ text ~ sep ~ '\\n'", "role ~ '\\n'"),
    "MPT": ("system ~ sep", "role ~ text ~ sep", "role"),
    "ROBIN": ("system ~ sep", "role ~ ':\\n' ~ text ~ sep", "role ~ ':\\n'"),
    "PHOENIX": ("system", "role ~ ': <s>' ~ text ~ '</s>'", "role ~ ': <s>'"),
    "DOLLY": (
        "system",
        f"role ~ ':\\n' ~ text ~ {_BY_TURN} ~ ('\\n\\n' if at is odd else '')",
        "role ~ ':\\n'",
    ),
    "FALCON_CHAT": ("(system ~ sep) if said else ''", "role ~ ': ' ~ text ~ sep", "role ~ ':'"),
    "CHATGLM3": ("system if said else ''", "role ~ '\\n' ~ text", "role"),
    "CHATINTERN": (
        "system",
        f"('<s>' if at is even else '') ~ role ~ ':' ~ text ~ {_BY_TURN} ~ '\\n'",
        "('<s>' if at is even else '') ~ role ~ ':'",
    ),
    "DEEPSEEK_CHAT": ("system", f"role ~ ': ' ~ text ~ {_BY_TURN}", "role ~ ':'"),
    "DeepSeekVL2": ("(system ~ sep) if system else ''", f"role ~ ': ' ~ text ~ {_BY_TURN}", "role ~ ':'"),
    "RWKV": (
        "system",
        "role ~ ': ' ~ text | replace('\\r\\n', '\\n') | replace('\\n\\n', '\\n') ~ '\\n\\n'",
        "role ~ ':'",
    ),
    "METAMATH": (
        "(system ~ sep) if system else ''",
        "role ~ (':\\n' ~ text ~ sep if at is even else ': ' ~ other ~ text)",
        "role ~ (':\\n' if at is even else ': ' ~ other)",
    ),
    "LLAMA2": (
        "system if said else '[INST] '",
        f"text ~ ' ' if at == 0 else role ~ ' ' ~ text ~ {_BY_TURN}",
        "role",
    ),
    "LLAMA3": (
        "system if said else ''",
        "'<|start_header_id|>' ~ role ~ '<|end_header_id|>\\n\\n' ~ text | trim ~ '<|eot_id|>'",
        "'<|start_header_id|>' ~ role ~ '<|end_header_id|>\\n\\n'",
    ),
    "LLAMA4": (
        "system if said else ''",
        "'<|header_start|>' ~ role ~ '<|header_end|>\\n\\n' ~ text | trim ~ '<|eot|>'",
        "'<|header_start|>' ~ role ~ '<|header_end|>\\n\\n'",
    ),
    "GEMMA3": ("system", "(text if at == 0 else role ~ text) ~ sep", "role"),
}


@frozen
class Conversation:
    """A format: what stands around the system text, the names of the two roles, and how turns are separated."""

    style: str
    user: str
    assistant: str
    sep: str = "\n"
    other: str = ""
    before_system: str = ""
    behind_system: str = ""
    # The system text of a chat without one.
    system: str = ""
    stop: tuple[str, ...] = field(default=())

    def source(self) -> TemplateSource:
        """Return the template."""
        system, turn, opening = _STYLES[self.style]
        names = {"sep": self.sep, "other": self.other}
        text = (
            "{% for m in messages if m.role not in ['system', 'user', 'assistant'] %}"
            "{{ raise_exception('This format has no role ' ~ m.role ~ '.') }}{% endfor %}"
            + "".join(f"{{% set {name} = {literal(value)} %}}" for name, value in names.items())
            + f"{{% set last = namespace(said={literal(self.system)}) %}}"
            "{% for m in messages if m.role == 'system' %}{% set last.said = m.content %}{% endfor %}"
            "{% set said = last.said %}"
            f"{{% set system = {literal(self.before_system)} ~ said ~ {literal(self.behind_system)} %}}"
            f"{{{{ {system} }}}}"
            "{% set turns = messages | rejectattr('role', 'equalto', 'system') | list %}"
            "{% for m in turns %}{% set at = loop.index0 %}{% set text = m.content or '' %}"
            f"{{% set role = {literal(self.user)} if m.role == 'user' else {literal(self.assistant)} %}}"
            f"{{{{ ({turn}) if text else ({opening}) }}}}{{% endfor %}}"
            f"{{% if add_generation_prompt %}}{{% set role = {literal(self.assistant)} %}}"
            f"{{% set at = turns | length %}}{{{{ {opening} }}}}{{% endif %}}"
        )
        return TemplateSource({"default": text}, stop=self.stop)


def literal(text: str) -> str:
    """Return a text as a string of Jinja."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
    return f"'{escaped}'"


_IM = {"user": "<|im_start|>user", "assistant": "<|im_start|>assistant", "before_system": "<|im_start|>system\n"}
_CHATML = Conversation(
    "CHATML", **_IM, sep="<|im_end|>", system="You are a helpful assistant.", stop=("<|endoftext|>", "<|im_end|>")
)
BUILT_IN: Mapping[str, Conversation] = {
    "chatml": _CHATML,
    "chatml-llava": _CHATML,
    "vicuna_v1.1": Conversation(
        "ADD_COLON_TWO",
        "USER",
        "ASSISTANT",
        sep=" ",
        other="</s>",
        system="A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, "
        "detailed, and polite answers to the user's questions.",
    ),
    "phi-4-mm": Conversation("NO_COLON_SINGLE", "<|user|>", "<|assistant|>", sep="<|end|>", stop=("<|end|>",)),
    "deepseek-vl2": Conversation(
        "DeepSeekVL2",
        "<|User|>",
        "<|Assistant|>",
        sep="\n\n",
        other="<｜end▁of▁sentence｜>",
        stop=("User:", "<｜end▁of▁sentence｜>"),
    ),
    "minicpmv": Conversation(
        "ADD_NEW_LINE_SINGLE",
        **_IM,
        behind_system=".",
        system="You are a helpful assistant",
        sep="<|im_end|>\n",
        stop=("<|im_end|>", "<|endoftext|>"),
    ),
    "minicpmo": Conversation(
        "ADD_NEW_LINE_SINGLE",
        **_IM,
        system="You are Qwen, created by Alibaba Cloud. You are a helpful assistant.",
        sep="<|im_end|>\n",
        stop=("<|im_end|>", "<|endoftext|>"),
    ),
    "qwen2-vl": Conversation(
        "ADD_NEW_LINE_SINGLE", **_IM, system="You are a helpful assistant.", sep="<|im_end|>\n", stop=("<|im_end|>",)
    ),
    "points-v15-chat": Conversation(
        "ADD_NEW_LINE_SINGLE", _IM["user"], _IM["assistant"], sep="<|im_end|>\n", stop=("<|im_end|>",)
    ),
    "kimi-vl": Conversation(
        "NO_COLON_SINGLE",
        "<|im_user|>user<|im_middle|>",
        "<|im_assistant|>assistant<|im_middle|>",
        sep="<|im_end|>",
        before_system="<|im_system|>system<|im_middle|>",
        system="You are a helpful assistant",
        stop=("<|im_end|>",),
    ),
    "llama-2": Conversation(
        "LLAMA2",
        "[INST]",
        "[/INST]",
        sep=" ",
        other=" </s><s>",
        before_system="[INST] <<SYS>>\n",
        behind_system="\n<</SYS>>\n\n",
        stop=("[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"),
    ),
    "llama-4": Conversation(
        "LLAMA4",
        "user",
        "assistant",
        sep="",
        before_system="<|header_start|>system<|header_end|>\n\n",
        behind_system="<|eot|>",
        stop=("<|end_of_text|>", "<|eot|>", "<|eom|>"),
    ),
    "gemma-it": Conversation(
        "GEMMA3",
        "<start_of_turn>user\n",
        "<start_of_turn>model\n",
        sep="<end_of_turn>\n",
        before_system="<start_of_turn>user\n",
        behind_system="\n\n",
        system="You are a helpful assistant.",
        stop=("<end_of_turn>",),
    ),
}

_BY_MODEL_TYPE = {
    "deepseek_vl_v2": "deepseek-vl2",
    "phi4mm": "phi-4-mm",
    "minicpmv": "minicpmv",
    "minicpmo": "minicpmo",
}
_BY_NAME = (
    (r"\bpoints\b", "points-v15-chat"),
    (r"vicuna|llava-v1\.5|llava-next-video-7b", "vicuna_v1.1"),
    (r"deepseek.*vl2", "deepseek-vl2"),
    (r"llava-v1\.6-(yi-)?34b|llava-next-video-34b|llava-onevision-qwen2", "chatml-llava"),
    (r"minicpm-v(?!.*4[._]6)", "minicpmv"),
    (r"minicpm-o(?!.*4[._]6)", "minicpmo"),
    (r"phi-4-multimodal", "phi-4-mm"),
)


def implied(model: str, model_type: str) -> str | None:
    """Return the built-in format that a model's name or its type says it has, None for most."""
    name = model.rstrip("/").rsplit("/", 1)[-1]
    found = next((known for pattern, known in _BY_NAME if re.search(pattern, name, re.IGNORECASE)), None)
    return found or _BY_MODEL_TYPE.get(model_type)


def is_description(value: Mapping[str, Any]) -> bool:
    """Return whether a JSON object describes a conversation, not a template's text."""
    return "sep_style" in value


def read_conversation(value: Mapping[str, Any], path: Path) -> Conversation:
    """Return the conversation that a JSON object describes; raises CheckpointError naming file and key."""

    def text(key: str, default: str | None = None) -> str:
        if key not in value and default is None:
            raise CheckpointError(f"{path}: {key} is missing")
        found = value.get(key, default)
        if not isinstance(found, str):
            raise senseless(path, key, found)
        return found

    text("name")
    style = text("sep_style")
    if style not in _STYLES:
        raise CheckpointError(f"{path}: sep_style is {style!r}; there are {', '.join(_STYLES)}")
    if "stop_str" not in value:
        raise CheckpointError(f"{path}: stop_str is missing; null is for none")
    stop = value["stop_str"]
    stops = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(each, str) and each for each in stops):
        raise senseless(path, "stop_str", stop)
    return Conversation(
        style,
        user=text("user"),
        assistant=text("assistant"),
        sep=text("sep", "\n"),
        other=text("sep2", ""),
        before_system=text("system") + "\n",
        system=text("system_message", ""),
        stop=tuple(stops),
    )
