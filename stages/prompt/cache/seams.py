"""Where a text may be cut so that the ids of its pieces, one behind the other, are the ids of the whole. Core.

Theory of operation. A tokenizer first finds its added tokens in a text, leftmost and longest; normalizer, pre-tokenizer
and model then see what lies between two of them, each stretch by itself, and nothing ever merges over a token. The
texts here are cut *before* an added token, so that each piece but the first begins with one:

- What is found in a piece alone is what is found there in the whole: a longer match at some place of the piece would
  reach over its end, where the whole has a token of its own, and matches do not overlap.
- Nothing between two tokens is at the text's beginning in a piece and not in the whole, since the piece's own token is
  there. So a blank that is put before a prompt's first word alone is put where it was.

Tokens that take whitespace with them reach only as far as whitespace goes, so a token can be cut before if it takes
none on its left and begins with none. Refused are tokenizers that take whitespace and have tokens with whitespace at
their edges, which then fight over it; tokens that only match as whole words, since they look at what stands behind
them; parts that are not known to read their stretch alone; and models that draw lots.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attrs import frozen

from stages.tokenizer_file import TokenizerFile

# What each makes of a stretch depends on that stretch; of Metaspace, on whether it is the text's first, too.
PRE_TOKENIZERS = frozenset(
    {
        "BertPreTokenizer",
        "ByteLevel",
        "CharDelimiterSplit",
        "Digits",
        "FixedLength",
        "Metaspace",
        "Punctuation",
        "Sequence",
        "Split",
        "UnicodeScripts",
        "Whitespace",
        "WhitespaceSplit",
    }
)
NORMALIZERS = frozenset(
    {
        "BertNormalizer",
        "ByteLevel",
        "Lowercase",
        "NFC",
        "NFD",
        "NFKC",
        "NFKD",
        "Nmt",
        "Precompiled",
        "Prepend",
        "Replace",
        "Sequence",
        "Strip",
        "StripAccents",
    }
)
MODELS = frozenset({"BPE", "Unigram", "WordLevel", "WordPiece"})


class NotSeparable(Exception):
    """The ids of pieces are not provably those of the whole; says why."""


@frozen(eq=False)
class Seams:
    """Finds the seams of a text: a pattern of all added tokens for each pass the tokenizer makes over it."""

    passes: "tuple[re.Pattern[str], ...]"
    # Added tokens that a text may be cut before.
    safe: frozenset[str]

    def pieces(self, text: str) -> list[str]:
        """Return text in pieces."""
        seams = sorted({0, *self._starts(text, 0, len(text), self.passes)})
        return [text[start:end] for start, end in zip(seams, [*seams[1:], len(text)], strict=True) if start < end]

    def _starts(self, text: str, start: int, end: int, passes: "tuple[re.Pattern[str], ...]") -> Iterator[int]:
        if not passes or start == end:
            return
        first, *others = passes
        at = start
        for match in first.finditer(text, start, end):
            if others:
                yield from self._starts(text, at, match.start(), tuple(others))
            if match.group() in self.safe:
                yield match.start()
            at = match.end()
        if others:
            yield from self._starts(text, at, end, tuple(others))


def seams_of(file: TokenizerFile) -> Seams:
    """Return where texts for this tokenizer may be cut; raises NotSeparable where that is not provable."""
    check_parts(file.spec)
    added: list[Mapping[str, Any]] = [token for token in file.spec["added_tokens"] or () if token["content"]]
    for token in added:
        if token.get("single_word"):
            raise NotSeparable(f"token {token['content']!r} matches as a whole word only, so it reads its neighbours")
    takes = next((token["content"] for token in added if token.get("lstrip") or token.get("rstrip")), None)
    edged = next((token["content"] for token in added if token["content"] != token["content"].strip()), None)
    if takes is not None and edged is not None:
        raise NotSeparable(f"token {takes!r} takes whitespace with it, which may be part of {edged!r}")
    # With a normalizer the second pass looks for tokens in text that is another by then.
    normalizes = _kinds(file.spec.get("normalizer")) - {"Sequence"}
    exact = [token for token in added if not token.get("normalized", True)]
    later = [] if normalizes else [token for token in added if token.get("normalized", True)]
    safe = frozenset(
        token["content"] for token in (*exact, *later) if not token.get("lstrip") and not token["content"][0].isspace()
    )
    if not safe:
        raise NotSeparable("it has no added token that a text may be cut before")
    passes = ([token["content"] for token in tokens] for tokens in (exact, later))
    return Seams(tuple(re.compile(longest_of(texts)) for texts in passes if texts), safe)


def check_parts(spec: Mapping[str, Any]) -> None:
    """Raise NotSeparable for a tokenizer with parts that may look beyond their stretch, or that draws lots."""
    for where, known in (("normalizer", NORMALIZERS), ("pre_tokenizer", PRE_TOKENIZERS)):
        if unknown := _kinds(spec.get(where)) - known:
            raise NotSeparable(f"its {where} {', '.join(sorted(unknown))} is not known to read each stretch alone")
    model = spec["model"]
    kind = model.get("type") or ("Unigram" if isinstance(model["vocab"], list) else "BPE")
    if kind not in MODELS:
        raise NotSeparable(f"its model {kind} is not known to read each stretch alone")
    if model.get("dropout"):
        raise NotSeparable("its model draws lots, so no text has ids of its own")


def longest_of(texts: Iterable[str]) -> str:
    """Return a pattern that matches the longest of the texts; it looks at each character once."""
    by_first: dict[str, list[str]] = {}
    for text in texts:
        by_first.setdefault(text[:1], []).append(text[1:])
    may_end = by_first.pop("", None) is not None
    parts = [re.escape(first) + longest_of(rests) for first, rests in sorted(by_first.items())]
    if not parts:
        return ""
    either = parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})"
    return f"(?:{either})?" if may_end else either


def _kinds(part: Any) -> set[str]:
    """Return the types of a tokenizer.json's part and of the parts in it."""
    if isinstance(part, list):
        return set().union(*map(_kinds, part))
    if not isinstance(part, dict):
        return set()
    inner = (part.get(key) for key in ("normalizers", "pretokenizers"))
    return {str(part.get("type"))}.union(*map(_kinds, inner))
