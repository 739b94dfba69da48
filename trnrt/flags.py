"""What the settings of a command are made of: one attrs field each, read from flags, the environment and a TOML file.

A setting's flag is the field's name with dashes, its environment variable TRNRT_ and the name in capitals, its TOML key
the name. A flag beats the environment, which beats the file, which beats the default. `--help`, the tables of
docs/CONFIGURATION.md and the errors are all made from the fields.
"""

import argparse
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import attrs
from attrs import Attribute

from stages.errors import ConfigError

# No number of anything is larger, and arithmetic with it stays exact in a float.
MAX_INT = 2**53


def setting(
    default: Any, group: str, text: str, *, low: float | None = None, alias: str | None = None, secret: bool = False
) -> Any:
    """Return a field with its group, its one line of help, its smallest value and SGLang's other name for it."""
    metadata = {"group": group, "text": text, "low": low, "alias": alias, "secret": secret}
    return attrs.field(default=default, metadata=metadata, repr=not secret)


def settings_of(config_class: type) -> dict[str, "Attribute[Any]"]:
    """Return the fields of a settings class by name, each with its type written out."""
    hints = get_type_hints(config_class)
    return {field.name: field.evolve(type=hints[field.name]) for field in attrs.fields(config_class)}


def flag_name(field: "Attribute[Any]") -> str:
    """Return the flag of a field."""
    return "--" + field.name.replace("_", "-")


def field_kind(field: "Attribute[Any]") -> tuple[type, tuple[str, ...]]:
    """Return the plain type of a field of settings_of and, for a Literal, its choices."""
    hint: Any = field.type
    if get_origin(hint) is UnionType:
        hint = next(arg for arg in get_args(hint) if arg is not type(None))
    if get_origin(hint) is Literal:
        return str, get_args(hint)
    return hint, ()


def shown(config: Any) -> dict[str, object]:
    """Return every setting by name, as /server_info and the log line show them: of a secret only that it is set."""
    secrets = {field.name for field in attrs.fields(type(config)) if field.metadata["secret"]}
    values = attrs.asdict(config)
    return values | {name: "***" for name in secrets if values[name] is not None}


class Layers:
    """What was given for a settings class, by field name: in flags, in the environment, in the file that one names."""

    def __init__(self, config_class: type, given: Mapping[str, Any], environ: Mapping[str, str]) -> None:
        fields = settings_of(config_class)
        self.given = given
        self.from_env = {
            name: convert(field, environ[key], key)
            for name, field in fields.items()
            if (key := f"TRNRT_{name.upper()}") in environ
        }
        path = given.get("config") or self.from_env.get("config")
        self.from_file = _read_toml(path, fields) if path else {}

    def get(self, name: str) -> Any:
        """Return the value that beats the others, None where there is none."""
        return self.merged().get(name)

    def merged(self, *under: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values over those of `under`, of which later ones beat earlier ones."""
        values: dict[str, Any] = {}
        for layer in (*under, self.from_file, self.from_env, self.given):
            values.update(layer)
        return values


class FlagParser(argparse.ArgumentParser):
    """A parser whose errors are ConfigErrors; absent flags leave nothing behind."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(
            prog=prog,
            description=description,
            argument_default=argparse.SUPPRESS,
            allow_abbrev=False,
            formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=54, width=150),
        )

    def error(self, message: str) -> Any:
        """Raise ConfigError."""
        raise ConfigError(message)

    def add_settings(self, config_class: type, groups: Sequence[str]) -> None:
        """Add the flags of `groups`, grouped, one line a flag."""
        for group in groups:
            section = self.add_argument_group(group)
            for field in settings_of(config_class).values():
                if field.metadata["group"] == group:
                    _add_flag(section, field)


def convert(field: "Attribute[Any]", raw: Any, where: str) -> Any:
    """Return a field's value from a text or a TOML value; raises ConfigError naming `where` it stands."""
    kind, choices = field_kind(field)
    try:
        value = _scalar(kind, raw)
    except ValueError:
        raise ConfigError(f"{where}: expected {_noun(kind)}, got {raw!r}") from None
    if choices and value not in choices:
        raise ConfigError(f"{where}: expected one of {', '.join(choices)}, got {raw!r}")
    low = field.metadata["low"]
    if low is not None and not value >= low:
        raise ConfigError(f"{where}: must be at least {low:g}, got {raw}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where}: must be a finite number, got {raw}")
    if isinstance(value, int) and not -MAX_INT <= value <= MAX_INT:
        raise ConfigError(f"{where}: must be at most {MAX_INT} in size, got {raw}")
    return value


def _add_flag(section: Any, field: "Attribute[Any]") -> None:
    kind, choices = field_kind(field)
    default = "" if field.default is None else f" [{field.default}]"
    options: dict[str, Any] = {
        "dest": field.name,
        "type": lambda raw: convert(field, raw, flag_name(field)),
        "metavar": "{" + ",".join(choices) + "}" if choices else kind.__name__.upper(),
    }
    if kind is bool:
        options |= {"nargs": "?", "const": True}
    section.add_argument(flag_name(field), help=field.metadata["text"].replace("%", "%%") + default, **options)
    if alias := field.metadata["alias"]:
        section.add_argument(f"--{alias}", help=argparse.SUPPRESS, **options)


def _scalar(kind: type, raw: Any) -> Any:
    if kind is bool:
        if isinstance(raw, bool):
            return raw
        words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
        if str(raw).lower() not in words:
            raise ValueError
        return words[str(raw).lower()]
    if isinstance(raw, bool) or (kind is not str and not isinstance(raw, str | int | float)):
        raise ValueError
    if kind is int and isinstance(raw, float):
        raise ValueError
    if kind is str and not isinstance(raw, str):
        raise ValueError
    return kind(raw)


def _noun(kind: type) -> str:
    return {int: "a whole number", float: "a number", bool: "true or false"}.get(kind, "text")


def _read_toml(path: str, fields: "Mapping[str, Attribute[Any]]") -> dict[str, Any]:
    try:
        table = tomllib.loads(Path(path).read_text())
    except (OSError, ValueError) as error:  # not TOML, or not UTF-8
        raise ConfigError(f"--config: cannot read {path}: {error}") from None
    values = {}
    for key, raw in table.items():
        name = key.replace("-", "_")
        if name not in fields:
            raise ConfigError(f"--config: {path} has an unknown key {key!r}")
        values[name] = convert(fields[name], raw, f"{path}: {key}")
    return values
