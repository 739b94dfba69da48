"""A checkpoint's tokenizer.json: where it is found, that it is whole, and which of its ids are added tokens.

A tiktoken vocabulary is read as the tokenizer.json it would be.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from stages.errors import CheckpointError
from stages.tiktoken_file import find_ranks, tokenizer_json

FILE_NAME = "tokenizer.json"


@frozen
class AddedToken:
    """A token matched literally in text; only special ones are hidden from output text."""

    token_id: int
    text: str
    special: bool


@frozen(eq=False)
class TokenizerFile:
    """A parsed tokenizer.json; text is the file as it stands."""

    path: Path
    text: str
    spec: Mapping[str, Any]
    added: tuple[AddedToken, ...]

    @property
    def control_ids(self) -> dict[str, int]:
        """Return the id of every added token by its text."""
        return {token.text: token.token_id for token in self.added}

    @property
    def words(self) -> Mapping[str, int]:
        """Return the model's own words and their ids."""
        vocab = self.spec["model"]["vocab"]
        # Unigram's is a list of pieces and scores.
        return vocab if isinstance(vocab, dict) else {piece: index for index, (piece, _) in enumerate(vocab)}

    @property
    def is_byte_level(self) -> bool:
        """Return whether its decoder is byte-level BPE's and nothing else."""
        return uses_byte_level(self.spec.get("decoder"))


def read_tokenizer_file(path: str) -> TokenizerFile:
    """Read a tokenizer.json, or the one in a folder, or what a folder's tiktoken vocabulary comes to.

    Raises CheckpointError naming the file and what it lacks.
    """
    file = Path(path)
    if file.is_dir():
        file = file / FILE_NAME
    ranks = None if file.is_file() else find_ranks(file.parent)
    try:
        text = file.read_text(encoding="utf-8") if ranks is None else tokenizer_json(ranks)
        spec = json.loads(text)
        added = tuple(
            AddedToken(int(token["id"]), str(token["content"]), bool(token.get("special", False)))
            for token in spec.get("added_tokens") or ()
        )
        vocab = spec["model"]["vocab"]
    except OSError as error:
        raise CheckpointError(f"cannot read {file}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file} is not a whole tokenizer.json: {error!r}") from error
    is_scored = isinstance(vocab, list) and all(isinstance(entry, list) and len(entry) == 2 for entry in vocab)
    if not isinstance(vocab, dict) and not is_scored:
        raise CheckpointError(f"{file}: the model's vocabulary is neither a table nor a list of scored pieces")
    return TokenizerFile(file, text, spec, added)


def uses_byte_level(decoder: object) -> bool:
    """Return whether a tokenizer.json's decoder entry is ByteLevel, alone or as the one step of a sequence."""
    if not isinstance(decoder, dict):
        return False
    if decoder.get("type") == "Sequence":
        steps = list(decoder.get("decoders") or ())
        return len(steps) == 1 and uses_byte_level(steps[0])
    return decoder.get("type") == "ByteLevel"
