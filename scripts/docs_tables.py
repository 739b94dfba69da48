"""Writes the generated tables of docs/ between their markers; with --check says which are stale and exits 1."""

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


def flags() -> Iterable[str]:
    from trnrt.config import GROUPS, Config

    return _settings(Config, GROUPS)


def render_flags() -> Iterable[str]:
    from trnrt.render_config import GROUPS, RenderConfig

    return _settings(RenderConfig, GROUPS)


def _settings(config_class: type, groups: Iterable[str]) -> Iterable[str]:
    from trnrt.flags import field_kind, flag_name, settings_of

    yield "| flag | environment | value | default | what |"
    yield "|---|---|---|---|---|"
    for group in groups:
        for field in settings_of(config_class).values():
            if field.metadata["group"] == group:
                kind, choices = field_kind(field)
                value = " \\| ".join(choices) or kind.__name__
                alias = f" (also `--{field.metadata['alias']}`)" if field.metadata["alias"] else ""
                default = "" if field.default is None else f"`{field.default}`"
                yield (
                    f"| `{flag_name(field)}`{alias} | `TRNRT_{field.name.upper()}` | {value} | {default} "
                    f"| {field.metadata['text']} |"
                )


def presets() -> Iterable[str]:
    from trnrt.presets import PRESETS

    yield "| preset | for | settings |"
    yield "|---|---|---|"
    for name, preset in PRESETS.items():
        settings = ", ".join(f"`--{key.replace('_', '-')} {value}`" for key, value in preset.settings.items())
        yield f"| `{name}` | {preset.text} | {settings or 'the defaults'} |"


def routes() -> Iterable[str]:
    """Ask the application itself: its rules, minus what the framework adds of its own."""
    from stages.ingress.dialects import find_dialects
    from stages.ingress.respond import Serving
    from stages.ingress.routes import create_app
    from stages.settings import IngressSettings

    app = create_app(find_dialects(), Serving(None, IngressSettings(enable_metrics=True)), None)
    yield "| route | methods | dialect |"
    yield "|---|---|---|"
    for rule in sorted(app.url_map.iter_rules(), key=lambda rule: (rule.rule, sorted(rule.methods))):
        methods = ", ".join(sorted(rule.methods - {"OPTIONS", "HEAD"}))
        path = re.sub("<path:(.*)>", r"{\1}", rule.rule)
        yield f"| `{path}` | {methods} | {rule.endpoint.rsplit(' ', 1)[0]} |"


def fields() -> Iterable[str]:
    from stages.ingress.dialects import (
        anthropic_messages,
        ollama_chat,
        ollama_common,
        ollama_generate,
        ollama_show,
        openai_chat,
        openai_common,
        openai_completions,
        openai_responses,
        sglang_generate,
        sglang_parsing,
        tokenize,
    )
    from stages.ingress.dialects.sglang_sampling import NOT_SERVED, WireSampling

    def names(cls: type) -> set[str]:
        return {field.alias for field in attrs.fields(cls)}

    common = names(openai_common.CommonBody)
    refused = set(openai_common.NOT_SERVED)
    message = names(anthropic_messages.MessagesBody)
    not_in_messages = {*openai_common.NOT_SERVED, *anthropic_messages.NOT_SERVED}
    native = names(sglang_generate.GenerateBody)
    ollama = names(ollama_common.OllamaBody)
    yield "| route | takes | refuses by name, unless the value asks for nothing |"
    yield "|---|---|---|"
    for route, takes, refuses in (
        ("every OpenAI route, but for what follows", common - refused, refused),
        ("`/v1/chat/completions` also", names(openai_chat.ChatBody) - common, set(openai_chat.NOT_SERVED)),
        (
            "`/v1/completions` also",
            names(openai_completions.CompletionBody) - common,
            set(openai_completions.NOT_SERVED),
        ),
        (
            "`/v1/responses` also",
            names(openai_responses.ResponsesBody) - common,
            {*openai_responses.NOT_SERVED, *openai_responses.MOVED},
        ),
        ("`/generate`", native, set(sglang_generate.NOT_SERVED)),
        ("`/generate`: `sampling_params`", names(WireSampling), set(NOT_SERVED)),
        ("`/v1/messages`, and but for `max_tokens` `/v1/messages/count_tokens`", message, not_in_messages),
        ("`/tokenize`, with `messages` also all of chat", names(tokenize.TokenizeBody), set()),
        ("`/detokenize`", names(tokenize.DetokenizeBody), set()),
        ("`/parse_function_call`", names(sglang_parsing.ParseFunctionCallBody), set()),
        ("`/separate_reasoning`", names(sglang_parsing.SeparateReasoningBody), set()),
        ("`/api/chat` and `/api/generate`", ollama, set(ollama_common.NOT_SERVED)),
        ("`/api/chat` also", names(ollama_chat.ChatBody) - ollama, set()),
        ("`/api/generate` also", names(ollama_generate.GenerateBody) - ollama, set()),
        ("Ollama's `options`", names(ollama_common.Options), set(ollama_common.OPTIONS_NOT_SERVED)),
        ("`/api/show`", names(ollama_show.ShowBody), set()),
    ):
        yield f"| {route} | {_code(takes - refuses)} | {_code(refuses)} |"


def _code(names: set[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names))


def messages() -> Iterable[str]:
    import stages.messages as module

    yield "| message | from -> to | what |"
    yield "|---|---|---|"
    for name, value in vars(module).items():
        if isinstance(value, type) and attrs.has(value) and value.__module__ == module.__name__:
            route, colon, what = (value.__doc__ or "").partition(": ")
            if "->" in route and colon:
                yield f"| `{name}` | {route} | {what.splitlines()[0]} |"


def statistics() -> Iterable[str]:
    """Tell every class of /v1/stats field by field, a class where it is first met."""
    from stages.stats import statistics as module

    yield "| object | field | type | what |"
    yield "|---|---|---|---|"
    classes = [value for value in vars(module).values() if isinstance(value, type) and attrs.has(value)]
    order = ["Statistics", "Windows", "Window", "Day", "Latency", "Stage", "Engine", "Tier", "Pages"]
    rest = [cls.__name__ for cls in classes if cls.__name__ not in order]
    for name in [*order, *rest]:
        cls = getattr(module, name)
        inherited = {field.name for base in cls.__mro__[1:] if attrs.has(base) for field in attrs.fields(base)}
        for field in attrs.fields(cls):
            if field.name not in inherited:
                kind = getattr(field.type, "__name__", None) if isinstance(field.type, type) else str(field.type)
                kind = re.sub(r"stages\.stats\.statistics\.|collections\.abc\.", "", str(kind))
                kind = re.sub(r"tuple\[(\w+), \.\.\.\]", r"list of \1", kind).replace(
                    "Mapping[str, int]", "counts by name"
                )
                yield f"| {name} | `{field.name}` | {kind.replace(' | None', ' or null')} | {field.metadata['text']} |"


def metrics() -> Iterable[str]:
    from stages.stats.metrics import FAMILIES

    yield "| name | type | labels | what |"
    yield "|---|---|---|---|"
    for family in FAMILIES:
        name = family.name + ("_total" if family.kind == "counter" else "")
        text = family.text + ("" if not family.of_engine else " *")
        yield f"| `{name}` | {family.kind} | {', '.join(f'`{label}`' for label in family.labels)} | {text} |"


TABLES: dict[str, tuple[str, Callable[[], Iterable[str]]]] = {
    "flags": ("docs/CONFIGURATION.md", flags),
    "render flags": ("docs/CONFIGURATION.md", render_flags),
    "presets": ("docs/CONFIGURATION.md", presets),
    "messages": ("stages/README.md", messages),
    "fields": ("docs/API.md", fields),
    "routes": ("docs/API.md", routes),
    "statistics": ("docs/API.md", statistics),
    "metrics": ("docs/API.md", metrics),
}


def main() -> int:
    stale = []
    for name, (path, rows) in TABLES.items():
        file = ROOT / path
        text = file.read_text()
        begin, end = f"<!-- table: {name} -->\n", "<!-- end of table -->"
        before, _, rest = text.partition(begin)
        fresh = before + begin + "\n".join(rows()) + "\n" + rest[rest.index(end) :]
        if fresh != text:
            stale.append(f"{path}: table {name!r} is stale; run python scripts/docs_tables.py")
            if "--check" not in sys.argv:
                file.write_text(fresh)
    if "--check" in sys.argv:
        print("\n".join(stale) or "generated tables are fresh")
        return bool(stale)
    return 0


if __name__ == "__main__":
    sys.exit(main())
