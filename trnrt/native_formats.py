"""Formats that models' own encoders write, programs beside the weights rather than templates, as templates of ours.

Their tags are known here. The sentences that introduce tools, or ask for more thinking, are the checkpoint's: they are
read as string constants out of its encoder, which is never run. What needs one that is not there is refused by name.
"""

import ast
from collections.abc import Mapping
from pathlib import Path

from attrs import frozen

from stages.errors import CheckpointError
from stages.settings import TemplateSource
from trnrt.conversations import literal
from trnrt.folder_files import read_text

DSML = "｜DSML｜"
MAX_ENCODER_CHARACTERS = 1 << 20
# What nobody here can vouch for; a checkpoint's Jinja of these is not what their engines read.
UNKNOWN = ("kimi_k3", "inkling_mm_model")

_CALLS = """
{%- macro calls(message) %}
{%- if message.tool_calls %}
{{- '\\n\\n<｜DSML｜@BLOCK@>\\n' }}
{%- for call in message.tool_calls %}
{{- '<｜DSML｜invoke name="' ~ call.function.name ~ '">\\n' }}
{%- for key, value in call.function.arguments.items() %}
{{- '<｜DSML｜parameter name="' ~ key ~ '" string="' ~ ('true' if value is string else 'false') ~ '">' }}
{{- value if value is string else value | tojson }}
{{- '</｜DSML｜parameter>\\n' }}
{%- endfor %}
{{- ('' if call.function.arguments else '\\n') ~ '</｜DSML｜invoke>\\n' }}
{%- endfor %}
{{- '</｜DSML｜@BLOCK@>' }}
{%- endif %}
{%- endmacro %}
{%- macro listed() %}
{%- if @NO_WORDS@ %}
{{- raise_exception('This model needs its @FILE@ to be told of tools, and has none in its folder.') }}
{%- endif %}
{{- '\\n\\n' ~ @BEFORE@ ~ (tools | map(attribute='function') | map('tojson') | join('\\n')) ~ @BEHIND@ }}
{%- endmacro %}
{%- set thinks = thinking | default(false) %}
{{- '<｜begin▁of▁sentence｜>' }}
"""

_V32 = (
    _CALLS
    + """
{%- set last = namespace(user=-1) %}
{%- for m in messages if m.role == 'user' %}{% set last.user = last.user + 1 %}{% endfor %}
{%- set seen = namespace(user=-1) %}
{%- if tools and messages[0].role != 'system' %}{{- listed() }}{% endif %}
{%- for m in messages %}
{%- set opens = add_generation_prompt or not loop.last %}
{%- if m.role == 'system' %}
{{- m.content }}{% if loop.first and tools %}{{- listed() }}{% endif %}
{%- elif m.role == 'user' %}
{%- set seen.user = seen.user + 1 %}
{{- '<｜User｜>' ~ m.content }}
{%- if opens %}{{- '<｜Assistant｜>' ~ ('<think>' if thinks and seen.user == last.user else '</think>') }}{% endif %}
{%- elif m.role == 'tool' %}
{%- if (loop.previtem or {}).role != 'tool' %}{{- '\\n\\n<function_results>' }}{% endif %}
{{- '\\n<result>' ~ m.content ~ '</result>' }}
{%- if (loop.nextitem or {}).role != 'tool' %}
{{- '\\n</function_results>' }}
{%- if opens %}{{- '\\n\\n' ~ ('<think>' if thinks and seen.user == last.user else '</think>') }}{% endif %}
{%- endif %}
{%- elif m.role == 'assistant' %}
{%- if thinks and seen.user == last.user %}{{- (m.reasoning_content or '') ~ '</think>' }}{% endif %}
{{- (m.content or '') ~ calls(m) ~ '<｜end▁of▁sentence｜>' }}
{%- else %}
{{- raise_exception('This format has no role ' ~ m.role ~ '.') }}
{%- endif %}
{%- endfor %}
"""
)

# Users' messages and tools' results in a row are one turn; results stand in the order of the calls.
_V4 = (
    _CALLS
    + """
{%- if thinks and reasoning_effort is defined %}
{%- if @NO_WORDS@ and reasoning_effort == 'max' %}
{{- raise_exception('This model needs its @FILE@ for this effort, and has none in its folder.') }}
{%- endif %}
{{- @EFFORTS@[reasoning_effort ~ ''] }}
{%- endif %}
{%- set last = namespace(turn=0) %}
{%- for m in messages %}
{%- if m.role in ['user', 'tool'] and (loop.nextitem or {}).role not in ['user', 'tool'] %}
{%- set last.turn = last.turn + 1 %}
{%- endif %}
{%- endfor %}
{%- set at = namespace(turn=0, blocks=[], results=[], order=[], next=0) %}
{%- if tools and messages[0].role != 'system' %}{{- listed() }}{% endif %}
{%- for m in messages %}
{%- if m.role == 'system' %}
{{- m.content }}{% if loop.first and tools %}{{- listed() }}{% endif %}
{%- elif m.role in ['user', 'tool'] %}
{%- if m.role == 'user' %}
{%- set at.blocks = at.blocks + [[false, m.content or '']] %}
{%- else %}
{%- set number = at.order.index(m.tool_call_id) if m.tool_call_id in at.order else 0 %}
{%- set at.blocks = at.blocks + [[true, '']] %}
{%- set at.results = at.results + [[number, m.content or '']] %}
{%- endif %}
{%- set follower = (loop.nextitem or {}).role %}
{%- if follower not in ['user', 'tool'] %}
{%- set at.turn = at.turn + 1 %}
{%- set results = at.results | sort(attribute=0) %}
{%- set at.next = 0 %}
{{- '<｜User｜>' }}
{%- for is_result, text in at.blocks %}
{{- '\\n\\n' if not loop.first }}
{%- if is_result %}
{{- '<tool_result>' ~ results[at.next][1] ~ '</tool_result>' }}{% set at.next = at.next + 1 %}
{%- else %}{{- text }}{% endif %}
{%- endfor %}
{%- set at.blocks = [] %}{% set at.results = [] %}
{%- if follower == 'assistant' or (loop.last and add_generation_prompt) %}
{{- '<｜Assistant｜>' ~ ('<think>' if thinks and (tools or at.turn == last.turn) else '</think>') }}
{%- endif %}
{%- endif %}
{%- elif m.role == 'assistant' %}
{%- if m.tool_calls %}{% set at.order = m.tool_calls | map(attribute='id') | list %}{% endif %}
{%- if thinks and (tools or at.turn == last.turn) %}{{- (m.reasoning_content or '') ~ '</think>' }}{% endif %}
{{- (m.content or '') ~ calls(m) ~ '<｜end▁of▁sentence｜>' }}
{%- else %}
{{- raise_exception('This format has no role ' ~ m.role ~ '.') }}
{%- endif %}
{%- endfor %}
"""
)


@frozen
class _Format:
    text: str
    block: str
    # The checkpoint's encoder, and its constant of the sentences about tools.
    file: str
    tools: str


_FORMATS: Mapping[str, _Format] = {
    "deepseek_v32": _Format(_V32, "function_calls", "encoding/encoding_dsv32.py", "TOOLS_SYSTEM_TEMPLATE"),
    "deepseek_v4": _Format(_V4, "tool_calls", "encoding/encoding_dsv4.py", "TOOLS_TEMPLATE"),
}


def native_name(model_type: str, architectures: tuple[str, ...]) -> str | None:
    """Return the format of its own that a model has, None for most."""
    if model_type in ("deepseek_v32", "deepseek_v3_2") or "DeepseekV32ForCausalLM" in architectures:
        return "deepseek_v32"
    if model_type == "deepseek_v4" or any(name.startswith("DeepseekV4") for name in architectures):
        return "deepseek_v4"
    return model_type if model_type in UNKNOWN else None


def native_source(name: str, folder: Path) -> TemplateSource:
    """Return the template of a format; raises CheckpointError when the checkpoint's encoder is not what it was."""
    if name in UNKNOWN:
        why = f"{name} has a format of its own that is not documented well enough to be built in; give --chat-template"
        return TemplateSource({}, why)
    form = _FORMATS[name]
    path = folder / form.file
    words = _constants(path) if path.is_file() else {}
    before, behind = _around_schemas(words, form.tools, path) if words else ("", "")
    efforts = {
        name.removeprefix("REASONING_EFFORT_").lower(): text
        for name, text in words.items()
        if name.startswith("REASONING_EFFORT_")
    }
    filled = {
        "@BLOCK@": form.block,
        "@FILE@": form.file,
        "@NO_WORDS@": "false" if words else "true",
        "@BEFORE@": literal(before),
        "@BEHIND@": literal(behind),
        "@EFFORTS@": "{" + ", ".join(f"{literal(key)}: {literal(text)}" for key, text in efforts.items()) + "}",
    }
    text = form.text
    for key, value in filled.items():
        text = text.replace(key, value)
    return TemplateSource({"default": text})


def _around_schemas(words: Mapping[str, str], constant: str, path: Path) -> tuple[str, str]:
    """Return the sentences before and behind the tools' schemas, the format's tags filled in."""
    text = words.get(constant)
    if text is None or text.count("{tool_schemas}") != 1:
        raise CheckpointError(f"{path}: {constant} is no text with a place for {{tool_schemas}}")
    tags = {"{dsml_token}": DSML, "{thinking_start_token}": "<think>", "{thinking_end_token}": "</think>"}
    for key, value in tags.items():
        text = text.replace(key, value)
    before, behind = text.split("{tool_schemas}")
    return before, behind


def _constants(path: Path) -> dict[str, str]:
    """Return the string constants a Python file assigns at its top level."""
    source = read_text(path)
    if len(source) > MAX_ENCODER_CHARACTERS:
        raise CheckpointError(f"{path}: is too long for an encoder")
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CheckpointError(f"{path}: is not Python: {error}") from None
    found: dict[str, str] = {}
    for node in body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            found |= {target.id: value.value for target in targets if isinstance(target, ast.Name)}
    return found
