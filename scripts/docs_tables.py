"""Writes the generated tables of docs/ between their markers; with --check says which are stale and exits 1."""

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


def flags() -> Iterable[str]:
    from trnrt.config import GROUPS, Config, field_kind, flag_name

    yield "| flag | environment | value | default | what |"
    yield "|---|---|---|---|---|"
    for group in GROUPS:
        for field in attrs.fields(Config):
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
    from stages.ingress.info import ROUTES

    import stages.ingress.dialects as dialects

    yield "| route | methods | answered by |"
    yield "|---|---|---|"
    for module in pkgutil.iter_modules(dialects.__path__):
        dialect = getattr(importlib.import_module(f"{dialects.__name__}.{module.name}"), "DIALECT", None)
        for route in dialect.routes if dialect else ():
            yield f"| `{route.path}` | {', '.join(route.methods)} | `stages/ingress/dialects/{module.name}.py` |"
    for route in ROUTES:
        yield f"| `{route.path}` | {', '.join(route.methods)} | `stages/ingress/info.py` |"


def messages() -> Iterable[str]:
    import stages.messages as module

    yield "| message | from -> to | what |"
    yield "|---|---|---|"
    for name, value in vars(module).items():
        if isinstance(value, type) and attrs.has(value) and value.__module__ == module.__name__:
            route, colon, what = (value.__doc__ or "").partition(": ")
            if "->" in route and colon:
                yield f"| `{name}` | {route} | {what.splitlines()[0]} |"


TABLES: dict[str, tuple[str, Callable[[], Iterable[str]]]] = {
    "flags": ("docs/CONFIGURATION.md", flags),
    "presets": ("docs/CONFIGURATION.md", presets),
    "messages": ("stages/README.md", messages),
    "routes": ("docs/API.md", routes),
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
