"""Lines about the engine's steps, in SGLang's words, which scripts that follow its log look for. Core.

A prefill step is a line, and so are `interval` decode steps together. Rates are over the time from step to step, what
the host did in between included; an idle time counts for none.
"""

from collections.abc import Mapping

from attrs import define, field

from graphs.keys import Family
from stages.messages import Load


@define(eq=False)
class _Since:
    """What was done since the last line of a kind: tokens of what was counted, seconds, steps."""

    tokens: float = 0
    engine_s: float = 0.0
    steps: int = 0

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.engine_s if self.engine_s > 0 else 0.0


@define(eq=False)
class BatchLog:
    """Adds steps up, and says when a line is due; an interval of 0 never is."""

    interval: int
    _prefill: _Since = field(factory=_Since)
    _decode: _Since = field(factory=_Since)
    # New requests and what was found cached of their prompts, since the last prefill line.
    _admitted: float = 0
    _cached: float = 0
    # When the last step ended, while another was on the device; None after an idle time.
    _busy_since_s: float | None = None

    def stepped(self, family: Family, num_rows: int, device_s: float, now_s: float) -> None:
        """Note a step that has just ended."""
        took_s = device_s if self._busy_since_s is None else now_s - self._busy_since_s
        since = self._prefill if family == "prefill" else self._decode
        since.engine_s += took_s
        if family == "decode":
            since.tokens += num_rows  # each brings one token
        since.steps += 1
        self._busy_since_s = now_s

    def lines(self, counts: Mapping[str, float], load: Load, is_busy: bool) -> list[str]:
        """Return the lines that are due after a turn with these counts; is_busy is whether a step is on the device."""
        if not is_busy:
            self._busy_since_s = None
        self._admitted += counts.get("admissions", 0)
        self._cached += counts.get("cached_tokens_device", 0) + counts.get("cached_tokens_host", 0)
        self._prefill.tokens += counts.get("prefill_tokens", 0)
        lines: list[str] = []
        if self.interval and self._prefill.steps:
            lines.append(self._prefill_line(load))
        if self.interval and self._decode.steps >= self.interval:
            lines.append(self._decode_line(load))
        return lines

    def _prefill_line(self, load: Load) -> str:
        since, self._prefill = self._prefill, _Since()
        admitted, cached = self._admitted, self._cached
        self._admitted = self._cached = 0
        return (
            f"Prefill batch, #new-seq: {admitted:.0f}, #new-token: {since.tokens:.0f}, #cached-token: {cached:.0f}, "
            f"{_usage(load)}, #running-req: {load.running}, #queue-req: {load.waiting}, "
            f"#pending-token: {load.waiting_tokens}, cuda graph: False, "
            f"input throughput (token/s): {since.tokens_per_s:.2f}"
        )

    def _decode_line(self, load: Load) -> str:
        since, self._decode = self._decode, _Since()
        return (
            f"Decode batch, #running-req: {load.running}, #full token: {_held_pages(load) * load.page_size_tokens}, "
            f"full token usage: {_full_usage(load):.2f}, mamba num: {load.used_slots}, "
            f"mamba usage: {_share(load.used_slots, load.total_slots):.2f}, cuda graph: False, "
            f"gen throughput (token/s): {since.tokens_per_s:.2f}, #queue-req: {load.waiting}"
        )


def retraction_line(num_retracted: float, share: float) -> str:
    """Return the line for requests that gave their memory back; share is of future tokens, kept free from now on."""
    return (
        f"KV cache pool is full. Retract requests. #retracted_reqs: {num_retracted:.0f}, #new_token_ratio: {share:.4f}"
    )


def _usage(load: Load) -> str:
    mamba = _share(load.used_slots, load.total_slots)
    return f"full token usage: {_full_usage(load):.2f}, mamba usage: {mamba:.2f}"


def _held_pages(load: Load) -> int:
    """Return the pages in use, without those that only the prefix cache holds and would give."""
    return load.used_pages - load.evictable_pages


def _full_usage(load: Load) -> float:
    return _share(_held_pages(load), load.total_pages)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
