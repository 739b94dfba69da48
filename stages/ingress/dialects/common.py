"""What every dialect of text generation shares: limits, sampling, derived ids and stream frames."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping

import orjson
from attrs import frozen

from stages.messages import Sampling
from stages.stop_patterns import PatternError, check_patterns

MAX_CHOICES = 128
# Of one call; as many choices as all prompts have together.
MAX_PROMPTS = 4096
MAX_STOP_STRINGS = 32
MAX_STOP_REGEX_BYTES = 256
MAX_TOP_LOGPROBS = 20
MAX_REQUEST_ID_CHARACTERS = 256
WEIGHT_VERSION = "default"
DONE = b"data: [DONE]\n\n"


def make_sampling(temperature: float, top_k: int, top_p: float, min_p: float, seed: int | None) -> Sampling:
    """Return a Sampling of values in range: next to no temperature is greedy, no top_k is 0.

    A top_k of 1 is greedy too, as renderers write it: drawn from all that share the highest logit it would be chance.

    The seed is folded into [0, 2^62): choice i draws with seed + i, which must stay within 64 bits.
    """
    return Sampling(
        temperature=0.0 if temperature < 1e-6 or top_k == 1 else float(temperature),
        top_k=max(top_k, 0),
        top_p=float(top_p),
        min_p=float(min_p),
        seed=None if seed is None else seed % 2**62,
    )


def read_stop_patterns(value: str | list[str] | None) -> tuple[str, ...]:
    """Return the patterns of a stop_regex, empty ones left out; raises PatternError in SGLang's words."""
    patterns = (value,) if isinstance(value, str) else tuple(value or ())
    if len(patterns) > MAX_STOP_STRINGS:
        raise PatternError(f"at most {MAX_STOP_STRINGS} stop_regex patterns are allowed, got {len(patterns)}")
    for pattern in patterns:
        if (size := len(pattern.encode("utf-8", "surrogatepass"))) > MAX_STOP_REGEX_BYTES:
            raise PatternError(f"stop_regex is {size} bytes, over the {MAX_STOP_REGEX_BYTES}-byte limit")
    served = tuple(filter(None, patterns))
    check_patterns(served)
    return served


def derived_id(*parts: object) -> str:
    """Return 32 hex digits that are a function of `parts`: ids of choices and calls without a source of chance."""
    return hashlib.blake2s("\0".join(map(str, parts)).encode("utf-8", "replace"), digest_size=16).hexdigest()


def repeated(names: Iterable[str]) -> list[str]:
    """Return the names that are there more than once, in order."""
    return sorted(name for name, count in Counter(names).items() if count > 1)


# Stands where a text will stand in a frame that is encoded once; no frame ends with it.
MARK = "\0"


@frozen
class Plain:
    """The bytes around a text in frames that differ in nothing else, so that each costs the encoding of its text."""

    parts: tuple[bytes, ...]

    @classmethod
    def around(cls, sample: bytes, count: int) -> "Plain":
        """Return what stands around the last `count` MARKs of a frame."""
        return cls(tuple(sample.rsplit(orjson.dumps(MARK), count)))

    def of(self, text: str) -> bytes:
        """Return the frame of `text`."""
        return orjson.dumps(text).join(self.parts)


def frame(value: object) -> bytes:
    """Return one server-sent event."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


def event_frame(value: Mapping[str, object]) -> bytes:
    """Return one server-sent event, named by its type."""
    return b"event: %b\n" % str(value["type"]).encode() + frame(value)
