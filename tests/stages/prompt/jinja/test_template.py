"""What a checkpoint's template is given, what it may not do, and where generation begins."""

import itertools
import time
from datetime import datetime
from typing import Any

import pytest

from stages.errors import ConfigError, InvalidRequest
from stages.messages import Chat, Tool
from stages.prompt.jinja.dialect import make_environment
from stages.prompt.jinja.template import JinjaTemplate, open_jinja
from stages.prompt.jinja.thinking import Thinking, thinking_of
from stages.settings import TemplateSource
from tests.stages.prompt.jinja.styles import STYLES, VARIABLES, control_texts_of

USER = {"role": "user", "content": "u"}
ROLES = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


def opened(text: str, control: tuple[str, ...] = (), **more: Any) -> JinjaTemplate:
    source = TemplateSource({"default": text}, variables=VARIABLES, **more)
    return open_jinja(source, control, time.monotonic, lambda: datetime(2026, 11, 30))


def style(name: str, **more: Any) -> JinjaTemplate:
    return opened(STYLES[name], control_texts_of(name), **more)


def text_of(template: JinjaTemplate, *messages: dict[str, Any], **more: Any) -> str:
    return template(Chat(messages, **more)).text


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ {'a': '<é>', 'b': 1e-06} | tojson }}", '{"a": "<é>", "b": 1e-06}'),
        ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
        ("{{ ('[1, 2]' | fromjson)[1] }}", "2"),
        ("{{ strftime_now('%d %b %Y') }}", "30 Nov 2026"),
        ("{% for k, v in {'items': 1}.items() %}{{ k }}{{ v }}{% endfor %}", "items1"),
        ("{% set n = namespace(a=1) %}{% for i in [1, 2] %}{% set n.a = n.a + i %}{% endfor %}{{ n.a }}", "4"),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "13"),
        ("{% generation %}a{% endgeneration %}\n", "a"),
        ("{% if true %}\n  {% if true %}\nx\n{% endif %}\n{% endif %}\n", "x\n"),
        ("{{ nothing }}{{ bos_token }}", "<s>"),
    ],
)
def test_the_dialect_is_that_of_checkpoints(template: str, text: str) -> None:
    assert text_of(opened(template), USER) == text


def test_a_template_that_refuses_is_quoted() -> None:
    template = opened("{{ raise_exception('no ' ~ messages[0].content) }}")
    with pytest.raises(InvalidRequest, match="no u"):
        template(Chat((USER,)))


@pytest.mark.parametrize(
    "hostile",
    [
        "{{ 'a' * 10 ** 10 }}",
        "{{ 2 ** (10 ** 10) }}",
        "{{ 'a'.ljust(10000000000) }}",
        "{{ '%10000000000d' % 1 }}",
        "{{ '{:10000000000d}'.format(1) }}",
        "{{ 'a' | center(10000000000) }}",
        "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
        "{% set x = messages.append(1) %}",
        "{{ 1 + 'a' }}",
    ],
)
def test_what_a_template_does_wrong_is_the_requests_error(hostile: str) -> None:
    with pytest.raises(InvalidRequest, match="template"):
        opened(hostile)(Chat((USER,)))


def test_a_template_has_no_way_out_of_the_sandbox() -> None:
    assert text_of(opened("{{ ''.__class__ }}{{ namespace.__init__ }}"), USER) == ""


def test_a_rendering_that_takes_too_long_is_ended() -> None:
    ticks = itertools.count()
    source = TemplateSource(
        {"default": "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}"}
    )
    template = open_jinja(source, (), lambda: float(next(ticks)))
    with pytest.raises(InvalidRequest, match="takes longer than 10 s"):
        template(Chat((USER,)))


def test_a_rendering_that_makes_too_much_is_ended() -> None:
    template = opened("{% for a in range(90000) %}{{ messages[0].content }}{% endfor %}")
    with pytest.raises(InvalidRequest, match="makes more than"):
        template(Chat(({"role": "user", "content": "u" * 10_000},)))


def test_a_text_that_is_not_jinja_stops_the_start() -> None:
    with pytest.raises(ConfigError, match="line 2"):
        opened("a\n{% if %}")


def test_without_a_template_chats_are_refused_with_the_reason() -> None:
    template = open_jinja(TemplateSource({}, "it has none"), (), time.monotonic)
    with pytest.raises(InvalidRequest, match="no usable chat template: it has none"):
        template(Chat((USER,)))


def test_tools_have_a_template_of_their_own_where_there_is_one() -> None:
    source = TemplateSource({"default": "plain", "tool_use": "{{ tools[0].function.name }}"})
    template = open_jinja(source, (), time.monotonic)
    assert template(Chat((USER,))).text == "plain"
    assert template(Chat((USER,), (Tool("f", {"name": "f"}),))).text == "f"


def test_messages_come_in_the_shape_the_template_takes() -> None:
    late = ({"role": "system", "content": "s0"}, USER, {"role": "system", "content": "s1"}, {**USER, "content": "v"})
    assert text_of(opened(ROLES), *late) == "[system]s0[user]u[system]s1[user]v"
    refuses = (
        "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('x') }}{% endif %}"
    )
    assert text_of(opened(refuses + "{% endfor %}" + ROLES), *late) == "[system]s0[user]u[user]s1[user]v"
    alternates = refuses + (
        "{% if loop.previtem and loop.previtem.role == m.role %}{{ raise_exception('y') }}{% endif %}{% endfor %}"
    )
    assert text_of(opened(alternates + ROLES), *late) == "[system]s0[user]u\n\ns1\n\nv"
    developer = {"role": "developer", "content": "d"}
    assert text_of(opened(ROLES), developer) == "[developer]d"
    assert "d" in text_of(opened(ROLES.replace("{% for m", "{% for m") + "{{ messages[0].role }}"), developer)
    knows_none = (
        "{% for m in messages %}{% if m.role == 'developer' %}{{ raise_exception('?') }}{% endif %}{% endfor %}"
    )
    assert text_of(opened(knows_none + ROLES), developer) == "[system]d"
    assert text_of(opened(ROLES), {"role": "assistant", "content": None}) == "[assistant]"


def test_a_developer_right_behind_the_system_is_part_of_it_where_the_template_knows_no_developers() -> None:
    knows_none = (
        "{% for m in messages %}{% if m.role == 'developer' %}{{ raise_exception('?') }}{% endif %}{% endfor %}"
    )
    system, developer = {"role": "system", "content": "s"}, {"role": "developer", "content": "d"}
    assert text_of(opened(knows_none + ROLES), system, developer, USER) == "[system]s\n\nd[user]u"
    assert text_of(opened(knows_none + ROLES), system, USER, developer) == "[system]s[user]u[system]d"


def test_parts_are_parts_where_the_template_takes_them_and_lines_elsewhere() -> None:
    message = {"role": "user", "content": "ab", "parts": ["a", "b"]}
    assert text_of(opened(ROLES), message) == "[user]a\nb"
    takes_parts = "{% for m in messages %}{% for p in m.content %}({{ p['text'] }}){% endfor %}{% endfor %}"
    assert text_of(opened(takes_parts), message, USER) == "(a)(b)(u)"
    assert text_of(style("glm4"), message).startswith("[gMASK]<sop><|user|>\nab")
    answer = {"role": "assistant", "content": "<think>w</think>\n\na", "parts": ["<think>w</think>", "\n\na"]}
    assert style("qwen3")(Chat((USER, answer, USER))).mark is None


PARTS_OR_TEXT = (
    "{% for m in messages %}{% if loop.index0 and m.role == messages[loop.index0 - 1].role %}"
    "{{ raise_exception('no') }}{% endif %}"
    "{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}[{{ m.role }}]"
    "{% if m.content is string or m.role == 'system' %}{{ m.content }}{% else %}"
    "{% for p in m.content %}({{ p.text }}){% endfor %}{% endif %}{% endfor %}"
)


def test_parts_are_parts_for_the_roles_that_a_template_takes_both_of() -> None:
    template, parts = opened(PARTS_OR_TEXT), {"content": "ab", "parts": ["a", "b"]}
    user, system = {"role": "user", **parts}, {"role": "system", **parts}
    assert text_of(template, user, {"role": "assistant", **parts}) == "[user](a)(b)[assistant](a)(b)"
    assert text_of(template, system, USER) == "[system]a\nb[user]u"
    late = {"role": "system", "content": "s"}
    assert (
        text_of(template, USER, {"role": "assistant", "content": "x"}, user, late)
        == "[user]u[assistant]x[user]a\nb\n\ns"
    )


def test_an_answer_in_parts_is_gone_on_from() -> None:
    answer = {"role": "assistant", "content": "ab", "parts": ["a", "b"]}
    assert text_of(opened(ROLES), USER, answer, continue_final_message=True) == "[user]u[assistant]a\nb"
    assert text_of(style("glm4"), USER, answer, continue_final_message=True).endswith("<|assistant|>\nab")


def test_there_are_no_documents_as_transformers_has_it() -> None:
    assert text_of(opened("{{ documents is none }}{{ tools is none }}"), USER) == "TrueTrue"


def test_a_template_reads_what_else_the_request_says_and_what_it_writes_there_stays_text() -> None:
    template = opened(
        "{{ tool_choice }}|{{ (response_format or {}).type }}|{{ documents or '' }}", ("<|end|>",), defaults={"a": 1}
    )
    facts = {"tool_choice": "auto", "response_format": {"type": "<|end|>"}}
    rendered = template(Chat((USER,), facts=facts, template={"documents": "<|end|>", "tool_choice": "mine"}))
    assert rendered.mark is not None
    assert rendered.text == f"mine|<{rendered.mark}|end|>|<{rendered.mark}|end|>"
    assert template(Chat((USER,))).text == "||"


def test_a_switchs_word_stays_whole_though_it_is_a_token_too() -> None:
    template = opened("{{ reasoning_effort == 'high' }}{{ response_format.type == 'text' }}{{ x }}", ("high", "text"))
    switches = {"reasoning_effort": "high", "x": "so high"}
    rendered = template(Chat((USER,), facts={"response_format": {"type": "text"}}, template=switches))
    assert rendered.text == f"TrueTrueso h{rendered.mark}igh"


def test_reasoning_is_put_back_where_the_template_does_not_read_it() -> None:
    answer = {"role": "assistant", "content": "ans", "reasoning_content": "why"}
    assert text_of(opened(ROLES), USER, answer) == "[user]u[assistant]<think>why</think>ans"
    reads = opened(ROLES + "{{ messages[1].reasoning_content }}")
    assert text_of(reads, USER, answer) == "[user]u[assistant]answhy"


def test_the_requests_switches_outrank_the_defaults_and_none_outranks_what_is_forced() -> None:
    template = opened("{{ a }}{{ b }}{{ add_generation_prompt }}", defaults={"a": 1, "b": 2})
    assert template(Chat((USER,), template={"b": 3, "add_generation_prompt": "no", "messages": []})).text == "13True"


def test_special_tokens_in_messages_are_trusted_only_on_demand() -> None:
    message = {"role": "user", "content": "<|im_end|>"}
    assert style("chatml")(Chat((message,))).mark is not None
    assert style("chatml", trusts_special_tokens=True)(Chat((message,))).mark is None


def test_think_tags_of_an_assistant_are_read_by_the_template() -> None:
    turns = (USER, {"role": "assistant", "content": "<think>\nw\n</think>\n\na"}, USER)
    rendered = style("qwen3")(Chat(turns))
    assert rendered.mark is None
    assert "assistant\na<|im_end|>" in rendered.text


def test_think_tags_of_an_assistant_are_tags_though_the_template_speaks_of_none() -> None:
    template = opened(ROLES, ("<think>", "</think>"))
    block = "<think>w</think>a"
    assert template(Chat((USER, {"role": "assistant", "content": block}, USER))).mark is None
    final = Chat((USER, {"role": "assistant", "content": "<think>w"}), continue_final_message=True)
    assert template(final).mark is None
    assert template(Chat(({"role": "user", "content": block},))).mark is not None


def test_reasoning_is_left_out_where_it_would_hide_the_calls() -> None:
    call = {"id": "123456789", "name": "f", "arguments": {"a": 1}}
    turns = (USER, {"role": "assistant", "content": None, "reasoning_content": "why", "tool_calls": [call]})
    assert "why" not in text_of(style("granite"), *turns)
    assert '"arguments": {"a": 1}' in text_of(style("granite"), *turns)
    assert "<think>why</think><|im_end|>" in text_of(style("chatml"), *turns)


def test_empty_reasoning_is_the_templates_to_show() -> None:
    answer = {"role": "assistant", "content": "ans", "reasoning_content": ""}
    assert "<think></think>" in text_of(style("glm4"), USER, answer)
    assert text_of(opened(ROLES), USER, answer) == "[user]u[assistant]ans"


@pytest.mark.parametrize("content", ["partial ", "  partial", "a\n", ""])
def test_a_final_message_is_left_open(content: str) -> None:
    chat = Chat((USER, {"role": "assistant", "content": content}), continue_final_message=True)
    assert style("chatml")(chat).text.endswith(f"<|im_start|>assistant\n{content}")
    assert style("gemma")(chat).text.endswith(f"<start_of_turn>model\n{content.strip()}".rstrip())


def test_only_an_assistants_text_is_gone_on_from() -> None:
    opens = style("chatml")(Chat((USER,), continue_final_message=True)).text
    assert opens.endswith("<|im_start|>assistant\n")
    with pytest.raises(InvalidRequest, match="does not show"):
        opened("{{ messages|length }}")(Chat((USER, {**USER, "role": "assistant"}), continue_final_message=True))


@pytest.mark.parametrize(
    ("name", "switches", "inside"),
    [
        ("qwen3", {}, True),
        ("qwen3", {"enable_thinking": False}, False),
        ("deepseek", {}, False),
        ("deepseek", {"enable_thinking": True}, True),
        ("chatml", {}, None),
        ("glm4", {}, True),
    ],
)
def test_whether_generation_begins_in_thought(name: str, switches: dict[str, Any], inside: bool | None) -> None:
    assert style(name)(Chat((USER,), template=switches)).in_reasoning is inside


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("{{ enable_thinking | default(true) }}", True),
        ("{{ enable_thinking | default(false) }}", False),
        ("{{ enable_thinking | default(true, true) }}", None),
        ("{% if thinking is not defined %}{% set thinking = true %}{% endif %}", True),
        ("{%- if not thinking is defined -%}\n{%- set thinking = false -%}{%- endif -%}", False),
        ("{% set t = thinking if thinking is defined else true %}", True),
        ("{% if enable_thinking is defined and enable_thinking is false %}{% endif %}", True),
        ("{% if enable_thinking is defined and not enable_thinking %}{% endif %}", True),
        ("{% if enable_thinking is not defined or enable_thinking %}{% endif %}", True),
        ("{% set ns = namespace(a=1, enable_thinking=true) %}", True),
        ("{% if enable_thinking %}{% endif %}", None),
        ("{# enable_thinking | default(true) #}{{ 'thinking' }}thinking", None),
        ("{% raw %}{{ thinking | default(true) }}{% endraw %}", None),
    ],
)
def test_the_switch_of_thinking_is_read_from_code_alone(code: str, expected: bool | None) -> None:
    thinking = thinking_of(code, make_environment(datetime.now))
    assert (thinking.default if thinking.kind == "switch" else None) is expected


def test_formats_that_always_think_or_think_by_effort() -> None:
    environment = make_environment(datetime.now)
    assert thinking_of("<|channel|>", environment) == Thinking("always")
    by_effort = thinking_of("[THINK]{{ reasoning_effort }}", environment)
    assert [by_effort.is_on({"reasoning_effort": effort}) for effort in (None, "none", "high")] == [False, False, True]


@pytest.mark.parametrize("at", range(1, len("<|im_end|>")))
def test_halves_that_meet_spell_no_control_text(at: int) -> None:
    control = "<|im_end|>"
    template = opened("{{ messages[0].content }}{{ messages[1].content }}", (control,))
    halves = [{"role": "user", "content": half} for half in (control[:at], control[at:])]
    rendered = template(Chat(tuple(halves)))
    assert control not in rendered.text
    assert rendered.text.replace(rendered.mark or "", "") == control
