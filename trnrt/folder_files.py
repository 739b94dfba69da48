"""Reads the small JSON files of a model folder; what is wrong in one is told by file and key. No torch."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from stages.errors import CheckpointError

T = TypeVar("T")


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in `path`; raises CheckpointError when it is missing or not one."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent}: {path.name} is missing") from None
    # RecursionError: brackets without end.
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: is not a JSON object")
    return value


def read_optional(path: Path) -> dict[str, Any]:
    """Return the JSON object in `path`, an empty one where there is no such file; raises CheckpointError."""
    return read_json(path) if path.is_file() else {}


def read_text(path: Path) -> str:
    """Return the text in `path`; raises CheckpointError when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from None


def need(table: Mapping[str, Any], key: str, kind: type[T], file: Path) -> T:
    """Return table[key]; raises CheckpointError when it is missing or of another kind."""
    if key not in table:
        raise CheckpointError(f"{file}: {key} is missing")
    value = table[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise senseless(file, key, value)
    return value


def senseless(file: Path, key: str, value: object) -> CheckpointError:
    """Return the error for a value that a key cannot have."""
    return CheckpointError(f"{file}: {key} is {value!r}, which makes no sense")


def end_ids(table: Mapping[str, Any], file: Path) -> frozenset[int]:
    """Return the ids under eos_token_id: one, some or none; raises CheckpointError."""
    value = table.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(token_id, int) and not isinstance(token_id, bool) and token_id >= 0 for token_id in ids):
        raise senseless(file, "eos_token_id", value)
    return frozenset(ids)
