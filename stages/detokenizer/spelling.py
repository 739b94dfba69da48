"""How a tokenizer spells text: the bytes of each token, where that does not depend on its neighbours. Core.

Byte-level BPE writes each byte as one character. Sentencepiece writes a blank as U+2581 and what it has no piece for
byte by byte, as `<0xE4>`. Both are undone token by token, which is exact for every sequence of ids, where the library
turns bytes that make no character into replacement signs. Of a whole sequence sentencepiece's first blank is no text;
an answer follows its prompt, so it keeps its own.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Step = Mapping[str, Any]
Spell = Callable[[str], bytes]

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


def byte_characters() -> tuple[str, ...]:
    """Return the character byte-level BPE writes for each byte 0 to 255.

    Printable Latin-1 stands for itself; the rest, in order, takes the characters from U+0100 on.
    """
    itself = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in itself else next(others)) for byte in range(256))


def decoder_steps(decoder: object) -> tuple[Step, ...]:
    """Return the steps of a tokenizer.json's decoder entry, sequences taken apart."""
    if not isinstance(decoder, dict):
        return ()
    if decoder.get("type") != "Sequence":
        return (decoder,)
    return tuple(step for part in decoder.get("decoders") or () for step in decoder_steps(part))


def spelling_of(decoder: object) -> Spell | None:
    """Return what spells one token's bytes, or None for a decoder that looks at neighbours."""
    steps = decoder_steps(decoder)
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return _byte_level()
    if kinds == ["Metaspace"]:
        replacement = str(steps[0].get("replacement", "\u2581"))
        return lambda token: token.replace(replacement, " ").encode()
    # After Fuse all is one text: only its beginning may change then.
    fused = kinds.index("Fuse") if "Fuse" in kinds else len(kinds)
    before, after = steps[:fused], steps[fused + 1 :]
    is_plain = all(step.get("type") == "ByteFallback" or _replaced(step) is not None for step in before)
    if not before or not is_plain or not all(map(_strips_start_only, after)):
        return None
    replaced = [pair for step in before if (pair := _replaced(step)) is not None]
    return _sentencepiece(replaced, with_bytes="ByteFallback" in kinds)


def strips_first_blank(decoder: object) -> bool:
    """Return whether the decoder's whole texts begin without the blank that their first token has."""
    return any(
        step.get("type") == "Strip" or (step.get("type") == "Metaspace" and step.get("prepend_scheme") != "never")
        for step in decoder_steps(decoder)
    )


def _byte_level() -> Spell:
    byte_of = {character: byte for byte, character in enumerate(byte_characters())}

    def spell(token: str) -> bytes:
        try:
            return bytes([byte_of[character] for character in token])
        except KeyError:
            return token.encode()

    return spell


def _sentencepiece(replaced: Sequence[tuple[str, str]], *, with_bytes: bool) -> Spell:
    def spell(token: str) -> bytes:
        for pattern, content in replaced:
            token = token.replace(pattern, content)
        byte = _BYTE.match(token) if with_bytes else None
        return bytes([int(byte[1], 16)]) if byte else token.encode()

    return spell


def _replaced(step: Step) -> tuple[str, str] | None:
    pattern = step.get("pattern")
    if step.get("type") != "Replace" or not isinstance(pattern, dict) or not isinstance(pattern.get("String"), str):
        return None
    return pattern["String"], str(step.get("content", ""))


def _strips_start_only(step: Step) -> bool:
    return step.get("type") == "Strip" and not step.get("stop") and step.get("content") == " "
