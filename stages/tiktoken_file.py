"""A tiktoken vocabulary as a tokenizer.json: ranks of byte strings, the pattern that cuts text, the added tokens.

Such a folder has its ranks in `tiktoken.model` or one `*.tiktoken`, its pattern as `pat_str` in the checkpoint's own
`tokenization_*.py`, which is read as text and never run, and its added tokens in tokenizer_config.json.
"""

import ast
import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from stages.detokenizer.spelling import byte_characters
from stages.errors import CheckpointError

PATTERN = "pat_str"
MAX_PROGRAM_CHARACTERS = 1 << 20


def find_ranks(folder: Path) -> Path | None:
    """Return a folder's file of ranks, None where there is none, or several."""
    named = folder / "tiktoken.model"
    found = [named] if named.is_file() else sorted(folder.glob("*.tiktoken"))
    return found[0] if len(found) == 1 else None


def tokenizer_json(file: Path) -> str:
    """Return the tokenizer.json of a file of ranks and what stands beside it; raises CheckpointError naming a file."""
    stat = file.stat()
    return _tokenizer_json(file, stat.st_mtime_ns, stat.st_size)


# A start reads it in several places, and it takes seconds.
@lru_cache(maxsize=1)
def _tokenizer_json(file: Path, _mtime_ns: int, _size: int) -> str:
    ranks = _ranks(file)
    spell = byte_characters()
    words = {piece: "".join(spell[byte] for byte in piece) for piece in ranks}
    merges = [_merge(piece, ranks) for piece in sorted(ranks, key=ranks.__getitem__) if len(piece) > 1]
    added = _added(file.parent / "tokenizer_config.json")
    pattern = {"type": "Split", "pattern": {"Regex": _pattern(file.parent)}, "behavior": "Isolated", "invert": False}
    bytes_of = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    spec = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [pattern, bytes_of]},
        "post_processor": None,
        "decoder": bytes_of,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            # A part of the text that is a token is that token, whatever merges would make of it.
            "ignore_merges": True,
            # The library numbers added tokens anew unless the model knows them.
            "vocab": {token["content"]: token["id"] for token in added}
            | {words[piece]: rank for piece, rank in ranks.items()},
            "merges": [[words[left], words[right]] for merge in merges if merge is not None for left, right in [merge]],
        },
    }
    return json.dumps(spec)


def _ranks(file: Path) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    try:
        for line in file.read_bytes().splitlines():
            if line.strip():
                piece, rank = line.split()
                ranks[base64.b64decode(piece, validate=True)] = int(rank)
    except (OSError, ValueError, binascii.Error) as error:
        raise CheckpointError(f"{file}: is no list of base64 and ranks: {error}") from None
    if not ranks or len(set(ranks.values())) != len(ranks) or min(ranks.values()) < 0 or b"" in ranks:
        raise CheckpointError(f"{file}: does not give every piece a rank of its own")
    return ranks


def _merge(piece: bytes, ranks: Mapping[bytes, int]) -> tuple[bytes, bytes] | None:
    """Return the two tokens that a piece is merged from last, None for one that merges never make."""
    parts = [piece[at : at + 1] for at in range(len(piece))]
    limit = ranks[piece]
    while len(parts) > 2:
        rank, at = min((ranks.get(left + right, limit), at) for at, (left, right) in enumerate(pairwise(parts)))
        if rank >= limit:
            return None
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return (parts[0], parts[1]) if all(part in ranks for part in parts) else None


def _added(path: Path) -> list[dict[str, Any]]:
    """Return the added tokens by rising id."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    try:
        table = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        added = {int(token_id): token for token_id, token in (table.get("added_tokens_decoder") or {}).items()}
        return [
            {"id": token_id, "content": str(token["content"]), **flags, "special": bool(token.get("special", True))}
            for token_id, token in sorted(added.items())
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: added_tokens_decoder is no table of tokens by id: {error!r}") from None


def _pattern(folder: Path) -> str:
    for path in sorted(folder.glob("tokenization_*.py")):
        try:
            source = path.read_text(encoding="utf-8")
            nodes = list(ast.walk(ast.parse(source))) if len(source) <= MAX_PROGRAM_CHARACTERS else []
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise CheckpointError(f"{path}: is not Python: {error}") from None
        for node in nodes:
            targets: Sequence[ast.expr] = node.targets if isinstance(node, ast.Assign) else ()
            if any(isinstance(target, ast.Name) and target.id.lower() == PATTERN for target in targets):
                text = _text(node.value) if isinstance(node, ast.Assign) else None
                if text:
                    return text
    what = f"its tiktoken file needs {PATTERN}, a text, in a tokenization_*.py beside it"
    raise CheckpointError(f"{folder}: tokenizer.json is missing, and {what}")


def _text(value: ast.expr) -> str | None:
    """Return the text of a string, or of strings joined by one."""
    if isinstance(value, ast.Constant):
        return value.value if isinstance(value.value, str) else None
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "join"):
        return None
    separator = _text(value.func.value)
    given = value.args[0] if len(value.args) == 1 else None
    parts = [_text(part) for part in given.elts] if isinstance(given, ast.List | ast.Tuple) else [None]
    texts = [part for part in parts if part is not None]
    return separator.join(texts) if separator is not None and len(texts) == len(parts) else None
