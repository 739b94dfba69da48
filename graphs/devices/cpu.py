"""The CPU device: eager from the first step, compiled as bodies become ready.

Theory of operation. A step is embed, then two calls a layer (its halves), then the head and the variant. A call is the
half's compiled body when there is one and the same function run eagerly when there is not; the choice is made at the
start of a step, so graphs are swapped in between steps. A prefill runs in blocks of 64 tokens, all layers over one
block before the next: blocks in which no row has a token left are skipped, and a row without tokens in a block points
at the null slot there, so that its state stays as the last block left it. Copies of pages and slots are made around
the blocks, captures between them; see `graphs.copying`.

With one bucket of every kind (--deterministic) a row's numbers come from the same instructions whoever its
neighbours are. A swap in the middle of a request would change them, so then compiling is waited for.
"""

import logging
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from graphs.background import Bodies
from graphs.capture import DTYPES, halves
from graphs.catalog import BLOCK_TOKENS, attention_body, mlp_body, variants
from graphs.chain import Chain, Link, driver
from graphs.compile import Compiled, Job, has_compiler
from graphs.config import Config
from graphs.copying import Rows, end_copies, part_runs
from graphs.ending import PromptScoring, edited, ending_of
from graphs.keys import GraphKey
from graphs.layers.scores import wanted_logprobs
from graphs.models.glm5_next import (
    decode_attention,
    embed,
    feed_forward_site,
    hidden,
    last_hidden,
    logits,
    prefill_attention,
)
from graphs.packing import Layout, column_major
from graphs.parameters import LayerWeights, Weights
from graphs.settings import DeviceMode, GraphSettings, default_cache
from graphs.shared_object import Loaded
from graphs.state import State, new_state, page_bytes, slot_bytes
from graphs.step import NO_COPIES, NULL_SLOT, Capacity, DeviceLost, Ints, StepInput, StepOutput, Transfer
from graphs.weights import load_weights

# start, num_valid, slots and page_table: what a step itself gives every attention body.
NUM_SMALL = 4

log = logging.getLogger("trnrt")


@frozen(eq=False)
class Half:
    """The weights of half a layer: packed for its compiled body, and the same memory by name for eager."""

    buffers: list[Tensor]
    views: LayerWeights

    @classmethod
    def of(cls, w: LayerWeights) -> "Half":
        """Pack w."""
        layout = Layout.of(w)
        buffers = layout.pack(w)
        return cls(buffers, layout.unpack(buffers))


class CpuDevice:
    """Runs steps on the CPU; see `graphs.step.Device`."""

    def __init__(
        self,
        config: Config,
        weights: Weights,
        settings: GraphSettings,
        mode: DeviceMode = "auto",
        cache: Path | None = None,
        threads: int = 1,
        progress: bool = False,
        num_host_pages: int = 1,
        num_host_slots: int = 1,
    ) -> None:
        """Take loaded weights; cache is where compiled graphs are kept, by default default_cache()."""
        self._config, self._settings, self._threads = config, settings, threads
        self._variants = variants()
        self._thread_local = threading.local()
        self._num_host_pages, self._num_host_slots = num_host_pages, num_host_slots
        self._state = self._new_state(settings.num_pages, settings.num_slots)
        self._pages, self._slots = Rows(self._state.page_tensors()), Rows(self._state.slot_tensors())
        has_host = num_host_pages > 1 or num_host_slots > 1
        self._host = self._new_state(num_host_pages, num_host_slots) if has_host else None
        self._top = {**weights.top, "head": column_major(weights.top["head"])}
        self._weight_bytes, self._state_bytes = weights.num_bytes(), self._state.num_bytes()
        self._halves = [tuple(Half.of(part) for part in halves(w)) for w in weights.layers]
        self._driver: Path | None = None
        self._chains: dict[GraphKey, Chain | None] = {}
        self._chained_of: Mapping[str, Compiled] = {}
        self._bodies = self._start(mode, cache or default_cache(), progress)

    @classmethod
    def open(
        cls,
        folder: Path,
        settings: GraphSettings,
        mode: DeviceMode = "auto",
        cache: Path | None = None,
        threads: int = 1,
        progress: bool = False,
        num_host_pages: int = 1,
        num_host_slots: int = 1,
    ) -> "CpuDevice":
        """Load the checkpoint in `folder`; raises ConfigError or WeightsError."""
        config = Config.read(folder)
        weights = load_weights(folder, config, DTYPES[settings.dtype], progress)
        return cls(config, weights, settings, mode, cache, threads, progress, num_host_pages, num_host_slots)

    @property
    def capacity(self) -> Capacity:
        """Return the shapes and sizes this device was built with."""
        settings, config = self._settings, self._config
        most = settings.buckets.pages[-1] * settings.page_size_tokens
        return Capacity(
            num_pages=settings.num_pages,
            page_size_tokens=settings.page_size_tokens,
            num_slots=settings.num_slots,
            buckets=settings.buckets,
            vocab_size=config.vocab_size,
            context_length_tokens=min(most, config.max_position_embeddings),
            max_top_logprobs=settings.max_top_logprobs,
            num_host_pages=self._num_host_pages,
            num_host_slots=self._num_host_slots,
            takes_mask=settings.takes_mask,
            adjust_tokens=settings.adjust_tokens,
        )

    def run(self, step: StepInput) -> StepOutput:
        """Run one step and return its sampled ids; raises DeviceLost when torch cannot."""
        try:
            return self._run(step)
        except (RuntimeError, IndexError) as error:
            raise DeviceLost(str(error)) from error

    def transfer(self, transfer: Transfer) -> float:
        """Copy between device and host memory, giving the seconds it took; raises DeviceLost."""
        try:
            return self._transfer(transfer)
        except (RuntimeError, IndexError) as error:
            raise DeviceLost(str(error)) from error

    def wait(self) -> None:
        """Wait until every graph is compiled or has failed; serving does not need it, measuring does."""
        if self._bodies is not None:
            self._bodies.wait()

    def describe(self) -> dict[str, object]:
        """Return facts for logs and /server_info."""
        return {
            "device": "cpu",
            "mode": "eager" if self._bodies is None else "compiled",
            "dtype": self._settings.dtype,
            "threads": self._threads,
            "weight_bytes": self._weight_bytes,
            "state_bytes": self._state_bytes,
            "host_bytes": 0 if self._host is None else self._host.num_bytes(),
            "page_bytes": page_bytes(self._config, self._settings),
            "slot_bytes": slot_bytes(self._config, self._settings),
            "graphs_ready": 0 if self._bodies is None else len(self._bodies.ready),
            "graphs_total": 0 if self._bodies is None else self._bodies.num_total,
        }

    def close(self) -> None:
        """Stop background compiles; idempotent."""
        if self._bodies is not None:
            self._bodies.close()

    # -----------------------------------------------------------------------------------------------------------------

    def _run(self, step: StepInput) -> StepOutput:
        began = time.perf_counter()
        self._adopt_thread()
        # Held for the whole step: what becomes ready meanwhile is used from the next one on.
        ready = self._bodies.ready if self._bodies is not None else {}
        variant = self._variants[step.key.variant]
        copies = None if step.copies is NO_COPIES else step.copies
        with torch.inference_mode():
            if copies is not None:
                self._pages.copy(copies.pages.tolist())
                self._slots.copy(copies.slots.tolist())
            slots = torch.from_numpy(step.slots)
            asked = step.scoring
            scoring = None if asked is None else PromptScoring(step, asked.targets, self._settings.max_top_logprobs)
            is_decode = step.key.family == "decode"
            h = self._decode(step, slots, ready) if is_decode else self._prefill(step, ready, scoring)
            wide = edited(logits(self._top, h), step.edits, ready)
            ending = ending_of(step, wide, ready, self._settings.max_top_logprobs)
            chosen = variant.choose(ending)
            wanted = None
            if step.wanted_ids is not None:
                wanted = wanted_logprobs(wide, ending.rows.temperature, torch.from_numpy(step.wanted_ids)).numpy()
            self._state.last_token.index_copy_(0, slots, chosen.ids)
            if copies is not None:
                self._pages.copy(copies.saves.tolist())
        return StepOutput(
            token_ids=chosen.ids.numpy(),
            logprobs=chosen.logprobs.numpy(),
            top_ids=None if chosen.best_ids is None else chosen.best_ids.numpy(),
            top_logprobs=None if chosen.best_logprobs is None else chosen.best_logprobs.numpy(),
            device_s=time.perf_counter() - began,
            wanted=wanted,
            scores=None if scoring is None else scoring.scores(),
        )

    def _transfer(self, transfer: Transfer) -> float:
        began = time.perf_counter()
        self._adopt_thread()
        if (host := self._host) is None:
            raise DeviceLost("this device has no host memory")
        pairs_of = (
            (self._pages, Rows(host.page_tensors()), transfer.pages),
            (self._slots, Rows(host.slot_tensors()), transfer.slots),
        )
        with torch.inference_mode():
            for ours, theirs, numbers in pairs_of:
                if transfer.to_host:
                    ours.copy_to(theirs, numbers[:, 0], numbers[:, 1])
                else:
                    theirs.copy_to(ours, numbers[:, 1], numbers[:, 0])
        return time.perf_counter() - began

    def _new_state(self, num_pages: int, num_slots: int) -> State:
        settings = self._settings
        return new_state(self._config, num_slots, num_pages, settings.page_size_tokens, DTYPES[settings.dtype])

    def _start(self, mode: DeviceMode, cache: Path, progress: bool) -> Bodies | None:
        if mode == "eager":
            log.info("CPU device: eager, as asked")
            return None
        if not has_compiler():
            log.warning("CPU device: eager, since there is no C++ compiler on this machine")
            return None
        job = Job.of(self._config, self._settings, cache, self._threads)
        with suppress(OSError, subprocess.CalledProcessError):  # without it the bodies are called one by one
            self._driver = driver(job.folder)
        bodies = Bodies(job, progress)
        buckets = self._settings.buckets
        is_fixed = all(len(sizes) == 1 for sizes in (buckets.batch, buckets.prefill_batch, buckets.pages))
        if mode == "compiled" or is_fixed:
            bodies.wait()
        return bodies

    def _adopt_thread(self) -> None:
        # The thread count is a property of the calling thread's OpenMP team.
        if not getattr(self._thread_local, "is_set", False):
            torch.set_num_threads(self._threads)
            self._thread_local.is_set = True

    def _decode(self, step: StepInput, slots: Tensor, ready: Mapping[str, Compiled]) -> Tensor:
        tokens = self._state.last_token[slots].unsqueeze(1)
        start = torch.from_numpy(step.start)
        streams = self._run_layers(step, ready, tokens, start, start, slots)
        return hidden(self._config, self._top, streams.squeeze(1))

    def _prefill(self, step: StepInput, ready: Mapping[str, Compiled], scoring: PromptScoring | None) -> Tensor:
        h = torch.zeros(step.key.batch, self._config.hidden_size, dtype=DTYPES[self._settings.dtype])
        for first in range(0, max(1, int(step.num_valid.max())), BLOCK_TOKENS):
            if step.copies is not NO_COPIES:
                for part, slots in part_runs(step, self._settings.buckets, first):
                    self._slots.copy(slots)
                    self._run_block(part, ready, first)
            streams, counts = self._run_block(step, ready, first)
            if step.copies is not NO_COPIES:
                self._slots.copy(end_copies(step, first))
            if scoring is not None:
                scoring.take(self._config, self._top, streams, first, ready)
            newest = last_hidden(self._config, self._top, streams, counts)
            h = torch.where((counts > 0).unsqueeze(1), newest, h)
        return h

    def _run_block(self, step: StepInput, ready: Mapping[str, Compiled], first: int) -> tuple[Tensor, Tensor]:
        """Run the block from token `first`, giving its streams and how many of its tokens are each row's [B]."""
        num_valid = np.clip(step.num_valid - first, 0, BLOCK_TOKENS)
        here = num_valid > 0
        counts = torch.from_numpy(num_valid)
        streams = self._run_layers(
            step,
            ready,
            torch.from_numpy(_block(step.tokens, first)),
            torch.from_numpy(np.where(here, step.start + first, 0)),
            counts,
            torch.from_numpy(np.where(here, step.slots, NULL_SLOT)),
        )
        return streams, counts

    def _run_layers(
        self,
        step: StepInput,
        ready: Mapping[str, Compiled],
        tokens: Tensor,
        start: Tensor,
        num_valid: Tensor,
        slots: Tensor,
    ) -> Tensor:
        config, key = self._config, step.key
        table = torch.from_numpy(step.page_table)
        streams = embed(config, self._top, tokens).contiguous()
        if key.family == "decode" and (chain := self._chain(key, ready)) is not None:
            return chain(streams, [start, num_valid, slots, table])
        for index, kind in enumerate(config.layer_kinds):
            state = self._state.layers[index]
            attention, mlp = self._halves[index]
            body = attention_body(config, self._settings, key, kind.attention)
            if (compiled := ready.get(body.name)) is not None:
                streams = compiled([streams, start, num_valid, slots, table, *attention.buffers, *state.values()])[0]
            elif key.family == "decode":
                streams = decode_attention(
                    config, kind, body.regime, attention.views, state, streams, start, slots, table
                )
            else:
                streams = prefill_attention(
                    config, kind, body.regime, attention.views, state, streams, start, num_valid, slots, table
                )
            if (compiled := ready.get(mlp_body(config, key, kind.mlp).name)) is not None:
                flat = streams.contiguous().view(-1, 1, *streams.shape[2:])
                streams = compiled([flat, *mlp.buffers])[0].view(streams.shape)
            else:
                streams = feed_forward_site(config, kind, mlp.views, streams).contiguous()
        return streams

    def _chain(self, key: GraphKey, ready: Mapping[str, Compiled]) -> Chain | None:
        """Return the decode bodies of `key` as one call, or None while one is missing."""
        if ready is not self._chained_of:
            self._chains, self._chained_of = {}, ready
        if key not in self._chains:
            self._chains[key] = self._link(key, ready)
        return self._chains[key]

    def _link(self, key: GraphKey, ready: Mapping[str, Compiled]) -> Chain | None:
        config, links = self._config, []
        if self._driver is None:
            return None
        for index, kind in enumerate(config.layer_kinds):
            attention, mlp = self._halves[index]
            first = ready.get(attention_body(config, self._settings, key, kind.attention).name)
            second = ready.get(mlp_body(config, key, kind.mlp).name)
            if not isinstance(first, Loaded) or not isinstance(second, Loaded):
                return None
            links.append(Link(first, [*range(NUM_SMALL), *attention.buffers, *self._state.layers[index].values()]))
            links.append(Link(second, mlp.buffers))
        return Chain(self._driver, links)


def _block(tokens: Ints, first: int) -> Ints:
    block = tokens[:, first : first + BLOCK_TOKENS]
    return np.pad(block, ((0, 0), (0, BLOCK_TOKENS - block.shape[1])))
