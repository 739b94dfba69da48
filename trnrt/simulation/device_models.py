"""Models of a device's step times and memory, for simulation; each says where its numbers come from.

Two kinds. `linear`: a fixed time, one for each row, one for each prompt token. `roofline`: what a step must read over
the memory bandwidth that is reached, or what it must compute, whichever is longer, plus fixed and collective time. Both
go by the graph's key, so padding to a bucket costs what it costs a real device of fixed shapes.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import attrs
import orjson
from attrs import field, frozen

from graphs.keys import Buckets, GraphKey, doubling
from graphs.step import Capacity
from stages.errors import ConfigError
from stages.settings import SchedulerSettings
from trnrt.simulation.traces import VOCAB_SIZE

SMALLEST_CHUNK_TOKENS = 64
SMALLEST_ROW_PAGES = 4
MAX_PAGES = 2**24
# Of the host cache's bytes, those for snapshots; the rest is for pages.
HOST_SNAPSHOT_SHARE = 0.5


def _at_least(low: float, *, or_more: bool = True) -> Any:
    return (attrs.validators.ge if or_more else attrs.validators.gt)(low)


def _positive(default: Any = attrs.NOTHING) -> Any:
    return field(default=default, validator=_at_least(0, or_more=False))


def _not_negative(default: Any = attrs.NOTHING) -> Any:
    return field(default=default, validator=_at_least(0))


@frozen(kw_only=True)
class DeviceModel:
    """What both kinds have: memory of one rank, host link, longest context and the flags that suit the device.

    token_bytes and slot_bytes are what one token and one sequence's recurrent state take of a rank's memory_bytes;
    host_token_bytes and host_slot_bytes what their copies weigh in host memory, over a link of host_bytes_per_s.
    """

    kind: ClassVar[str]

    source: str
    memory_bytes: float = _positive()
    token_bytes: float = _positive()
    slot_bytes: float = _positive()
    host_token_bytes: float = _positive()
    host_slot_bytes: float = _positive()
    host_bytes_per_s: float = _positive()
    context_length_tokens: int = field(default=262_144, validator=_at_least(256))
    page_size_tokens: int = field(default=64, validator=_at_least(4))
    chunk_tokens: int = field(default=256, validator=_at_least(SMALLEST_CHUNK_TOKENS))
    max_running_requests: int = field(default=32, validator=_at_least(1))

    def step_seconds(self, key: GraphKey) -> float:
        """Return how long a step of `key` takes."""
        raise NotImplementedError

    def transfer_seconds(self, num_pages: int, num_slots: int) -> float:
        """Return how long copying so many pages and slots from or to host memory takes."""
        num_tokens = num_pages * self.page_size_tokens
        num_bytes = num_tokens * self.host_token_bytes + num_slots * self.host_slot_bytes
        return num_bytes / self.host_bytes_per_s

    def defaults(self) -> Mapping[str, Any]:
        """Return the settings that suit the device, by Config field, for flags that were not given."""
        return {"chunked_prefill_size": self.chunk_tokens, "max_running_requests": self.max_running_requests}

    def capacity(self, settings: SchedulerSettings, max_total_tokens: int | None, host_cache_bytes: float) -> Capacity:
        """Return the buckets, pages and slots the device has under `settings`; raises ConfigError without room."""
        rows, cache = settings.max_running_requests, settings.cache
        num_slots = 1 + rows if cache is None else 1 + 2 * rows + cache.max_snapshots
        page_bytes = self.page_size_tokens * self.token_bytes
        num_pages = int((self.memory_bytes - num_slots * self.slot_bytes) // page_bytes)
        if max_total_tokens is not None:
            num_pages = min(num_pages, max_total_tokens // self.page_size_tokens)
        if num_pages < SMALLEST_ROW_PAGES:
            raise ConfigError(
                f"--max-running-requests, --snapshot-slots, --max-total-tokens: {num_slots} slots of "
                f"{self.slot_bytes / 1e6:g} MB leave {max(0, num_pages)} pages of {self.memory_bytes / 1e9:g} GB"
            )
        row_pages = min(num_pages, math.ceil(self.context_length_tokens / self.page_size_tokens))
        num_host_pages, num_host_slots = self._host_sizes(host_cache_bytes if cache is not None else 0.0)
        if max(num_pages, num_host_pages) > MAX_PAGES:
            raise ConfigError(
                f"--device-model, --max-total-tokens, --host-cache-gb: {num_pages} pages and {num_host_pages} in host "
                f"memory are more than the {MAX_PAGES} that can be simulated"
            )
        chunk = settings.chunked_prefill_size_tokens
        return Capacity(
            num_pages=num_pages + 1,
            page_size_tokens=self.page_size_tokens,
            num_slots=num_slots,
            buckets=Buckets(
                batch=doubling(1, rows),
                prefill_batch=doubling(1, min(settings.max_prefill_rows, rows)),
                tokens=doubling(min(SMALLEST_CHUNK_TOKENS, chunk), chunk),
                pages=doubling(min(SMALLEST_ROW_PAGES, row_pages), row_pages),
            ),
            vocab_size=VOCAB_SIZE,
            context_length_tokens=row_pages * self.page_size_tokens,
            max_top_logprobs=1,
            num_host_pages=1 + num_host_pages,
            num_host_slots=1 + num_host_slots,
        )

    def _host_sizes(self, host_cache_bytes: float) -> tuple[int, int]:
        """Return the pages and slots of host memory; raises ConfigError when it is given and too little for one."""
        slot_bytes = host_cache_bytes * HOST_SNAPSHOT_SHARE
        num_pages = int((host_cache_bytes - slot_bytes) // (self.page_size_tokens * self.host_token_bytes))
        num_slots = int(slot_bytes // self.host_slot_bytes)
        if host_cache_bytes and not (num_pages and num_slots):
            raise ConfigError(
                f"--host-cache-gb: {host_cache_bytes / 1e9:g} is too little to hold one page and snapshot"
            )
        return num_pages, num_slots


@frozen(kw_only=True)
class LinearModel(DeviceModel):
    """A fixed time a step, one for each row and one for each prompt token."""

    kind: ClassVar[str] = "linear"

    step_s: float = _not_negative()
    row_s: float = _not_negative()
    prompt_token_s: float = _not_negative()

    def step_seconds(self, key: GraphKey) -> float:
        """Return step_s and what the rows or the prompt tokens add."""
        if key.family == "decode":
            return self.step_s + key.batch * self.row_s
        return self.step_s + key.batch * key.tokens * self.prompt_token_s


@frozen(kw_only=True)
class RooflineModel(DeviceModel):
    """Bytes and operations of a step over num_ranks ranks; `_rank` fields are of one rank, others of all together.

    A row reads the latents of the selected_tokens its index picks and the index keys of its whole context, on every
    rank. Experts are read once a step, as many as uniform routing touches with the step's tokens.
    """

    kind: ClassVar[str] = "roofline"

    num_ranks: int = field(validator=_at_least(1))
    bandwidth_rank_bytes_per_s: float = _positive()
    bandwidth_share: float = _positive()
    compute_rank_flop_per_s: float = _positive()
    step_s: float = _not_negative()
    num_collectives: int = _not_negative()
    collective_s: float = _not_negative()
    collective_token_s: float = _not_negative()
    weight_bytes: float = _not_negative()
    num_experts: int = field(validator=_at_least(1))
    experts_per_token: int = field(validator=_at_least(1))
    # One expert's weights in all layers together.
    expert_bytes: float = _not_negative()
    state_row_bytes: float = _not_negative()
    selected_tokens: int = _not_negative()
    latent_token_rank_bytes: float = _not_negative()
    index_token_rank_bytes: float = _not_negative()
    flop_per_token: float = _not_negative()

    def step_seconds(self, key: GraphKey) -> float:
        """Return the longer of reading and computing, plus fixed and collective time."""
        num_tokens = key.batch * key.tokens
        reading_s = self.read_rank_bytes(key) / (self.bandwidth_rank_bytes_per_s * self.bandwidth_share)
        computing_s = num_tokens * self.flop_per_token / (self.num_ranks * self.compute_rank_flop_per_s)
        collectives_s = self.num_collectives * (self.collective_s + num_tokens * self.collective_token_s)
        return self.step_s + collectives_s + max(reading_s, computing_s)

    def read_rank_bytes(self, key: GraphKey) -> float:
        """Return what one rank reads, and of states also writes, in a step of `key`."""
        untouched = (1 - self.experts_per_token / self.num_experts) ** (key.batch * key.tokens)
        shared = (
            self.weight_bytes
            + self.num_experts * (1 - untouched) * self.expert_bytes
            + key.batch * self.state_row_bytes
        )
        context = key.pages * self.page_size_tokens
        latents = min(context, self.selected_tokens) * self.latent_token_rank_bytes
        return shared / self.num_ranks + key.batch * (latents + context * self.index_token_rank_bytes)


_KINDS: Mapping[str, type[DeviceModel]] = {one.kind: one for one in (LinearModel, RooflineModel)}
_MIB = 2**20


def _trn2(num_ranks: int, memory_bytes: float) -> RooflineModel:
    """Return GLM-5.3-Flash in bf16 over num_ranks logical cores of Trainium2 with memory_bytes left on each."""
    snapshot_bytes = 140.8 * _MIB
    return RooflineModel(
        source=(
            "estimate, not run on hardware: roofline of GLM-5.3-Flash in bf16 at 60 % of 725 GB/s a logical core, "
            "3 ms a graph, 92 collectives of 18 us; prefill at 79 TF/s a core; host link 16 GB/s assumed"
        ),
        memory_bytes=memory_bytes,
        token_bytes=11_968,  # latents and index keys are on every rank
        slot_bytes=snapshot_bytes / num_ranks,
        host_token_bytes=11_968,
        host_slot_bytes=snapshot_bytes,
        host_bytes_per_s=16e9,
        chunk_tokens=2048,
        max_running_requests=32,
        num_ranks=num_ranks,
        bandwidth_rank_bytes_per_s=725e9,
        bandwidth_share=0.6,
        compute_rank_flop_per_s=79e12,
        step_s=0.003,
        num_collectives=92,
        collective_s=18e-6,
        collective_token_s=4096 * 2 / 100e9,
        weight_bytes=16.6e9,
        num_experts=288,
        experts_per_token=8,
        expert_bytes=42 * 3 * 4096 * 2048 * 2,
        state_row_bytes=285e6,
        selected_tokens=2048,
        latent_token_rank_bytes=11_264,
        index_token_rank_bytes=704,
        flop_per_token=33.4e9,
    )


def _cpu() -> LinearModel:
    """Return the shipped model on one thread, from the table in docs/PERFORMANCE.md."""
    return LinearModel(
        source=(
            "line through docs/PERFORMANCE.md's table, one thread: decode steps of 1, 8 and 32 rows, prefill of 256 "
            "tokens; contexts beyond 1,027 tokens were not timed, and 262,144 are allowed here; host copies at 4 GB/s "
            "assumed"
        ),
        memory_bytes=2e9,
        token_bytes=432,
        slot_bytes=243e3,
        host_token_bytes=432,
        host_slot_bytes=243e3,
        host_bytes_per_s=4e9,
        step_s=0.0022,
        row_s=0.00022,
        prompt_token_s=0.000198,
    )


DEVICE_MODELS: Mapping[str, Callable[[], DeviceModel]] = {
    "cpu": _cpu,
    # 24 GiB a logical core less the weights, and a margin for the runtime and what a step works on.
    "trn2-tp32": lambda: _trn2(32, 5 * 2**30),
    "trn2-tp64": lambda: _trn2(64, 13 * 2**30),
}


def load_device_model(name: str) -> DeviceModel:
    """Return the model of that name, or the one in the JSON file; raises ConfigError naming the file and field."""
    if name in DEVICE_MODELS:
        return DEVICE_MODELS[name]()
    try:
        table = orjson.loads(Path(name).read_bytes())
    except OSError as error:
        known = ", ".join(DEVICE_MODELS)
        raise ConfigError(f"--device-model: {name!r} is none of {known} and no file: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"--device-model: {name}: not JSON: {error}") from None
    kind = table.pop("kind", None) if isinstance(table, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ConfigError(f"--device-model: {name}: kind: expected one of {', '.join(_KINDS)}")
    return _from_table(_KINDS[kind], table, f"--device-model: {name}")


def _from_table(kind: type[DeviceModel], table: dict[str, Any], where: str) -> DeviceModel:
    fields = {one.name: one for one in attrs.fields(kind)}
    for name, value in table.items():
        if name not in fields:
            raise ConfigError(f"{where}: there is no field {name!r}")
        wanted = fields[name].type
        is_right = isinstance(value, str) if wanted is str else isinstance(value, int if wanted is int else int | float)
        if not is_right or isinstance(value, bool):
            raise ConfigError(f"{where}: {name}: expected a {'text' if wanted is str else 'number'}, got {value!r}")
    missing = [name for name, one in fields.items() if one.default is attrs.NOTHING and name not in table]
    if missing:
        raise ConfigError(f"{where}: {missing[0]} is missing")
    try:
        return kind(**table)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def to_table(model: DeviceModel) -> dict[str, Any]:
    """Return the model as its JSON file holds it."""
    return {"kind": model.kind, **attrs.asdict(model)}
