"""What the server says about itself: models, health, settings and load; bodies are core, values come from `Info`.

/health, /health_generate and /ready answer 200 only while the server takes requests: 503 while it starts and while it
drains, and /ready while it is paused. Unlike SGLang's they generate nothing: the engine is watched by supervision,
which ends the process when a stage or the device dies, so a probe token would tell nothing more and would take a second
and a place in the queue.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Literal, cast

from attrs import frozen

from stages.errors import InvalidRequest, NotFound
from stages.messages import Load
from stages.settings import ModelSettings

Readiness = Literal["starting", "ready", "draining"]
LOAD_SECTIONS = frozenset({"core", "memory", "spec", "lora", "disagg", "queues", "all"})


@frozen
class Device:
    """What the graphs run on; sizes in bytes, 0 where a device cannot say."""

    accelerator: str = "cpu"
    num_accelerators: int = 1
    weight_bytes: int = 0
    cache_bytes: int = 0
    graph_bytes: int = 0


@frozen(eq=False)
class Info:
    """Where the info routes read from; the callables are cheap, synchronous and asked at each request."""

    model: ModelSettings
    tokenizer_path: str
    version: str
    started_s: int
    readiness: Callable[[], Readiness]
    load: Callable[[], Load]
    server_args: Callable[[], Mapping[str, object]]
    max_running_requests: int
    device: Device = Device()
    gen_throughput: Callable[[], float] = lambda: 0.0
    cache_hit_rate: Callable[[], float] = lambda: 0.0
    # How the prompt token cache stands; None where there is none.
    prompt_cache: Callable[[], Mapping[str, object]] | None = None


def models(info: Info) -> dict[str, object]:
    """Return the list of the one served model."""
    return {"object": "list", "data": [_model(info)]}


def model(info: Info, model_id: str) -> dict[str, object]:
    """Return the served model's entry, whatever it was called; raises NotFound for what is no name of it."""
    if not info.model.answers_to(model_id):
        raise NotFound(f"The model '{model_id}' does not exist", "model", "model_not_found")
    return _model(info)


def no_response(response_id: str) -> object:
    """Raise NotFound: no response is kept once it was sent, so none can be read, deleted or cancelled."""
    name = response_id.partition("/")[0]
    raise NotFound(f"There is no response '{name}': this server stores none; send the whole input.", "response_id")


def model_info(info: Info) -> dict[str, object]:
    """Return what SGLang's /model_info holds."""
    served = info.model
    return {
        "model_path": served.model_path,
        "served_model_name": served.served_model_name,
        "tokenizer_path": info.tokenizer_path,
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": "default",
        "load_format": "auto",
        "reasoning_parser": served.reasoning_parser,
        "tool_call_parser": served.tool_call_parser,
        "disaggregation_mode": "null",
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": served.model_type,
        "architectures": list(served.architectures),
    }


def server_info(info: Info) -> dict[str, object]:
    """Return every resolved setting, and the facts SGLang's tests and benchmark read."""
    load = info.load()
    total_tokens = load.total_pages * load.page_size_tokens
    arguments = dict(info.server_args())
    internal_state = {
        **arguments,
        "effective_max_running_requests_per_dp": info.max_running_requests,
        "last_gen_throughput": round(info.gen_throughput(), 2),
        "cache_hit_rate": round(info.cache_hit_rate(), 4),
        "num_retracted_reqs": load.retracted,
        "is_paused": load.is_paused,
        "memory_usage": _memory(info, total_tokens),
        "disaggregation_mode": "null",
    }
    return {
        **arguments,
        "status": info.readiness(),
        "max_total_num_tokens": total_tokens,
        "max_req_input_len": info.model.context_length_tokens - 1,
        "version": info.version,
        "frontend": "python",
        "startup_time": info.started_s,
        "prompt_cache": None if info.prompt_cache is None else dict(info.prompt_cache()),
        "internal_states": [internal_state],
    }


def get_load(info: Info) -> list[dict[str, object]]:
    """Return the list older SGLang releases answered /get_load with: one object per data-parallel rank."""
    load = info.load()
    return [
        {
            "dp_rank": 0,
            "num_reqs": load.running + load.waiting,
            "num_waiting_reqs": load.waiting,
            "num_tokens": _busy_pages(load) * load.page_size_tokens + load.waiting_tokens,
        }
    ]


def loads(info: Info, now_s: float, include: str = "all", dp_rank: int | None = None) -> dict[str, object]:
    """Return what SGLang's /v1/loads holds; raises InvalidRequest for an unknown section."""
    sections = {part.strip() for part in include.split(",") if part.strip()} or {"all"}
    if unknown := sections - LOAD_SECTIONS:
        raise InvalidRequest(f"Unknown section: {', '.join(sorted(unknown))}", "include")
    timestamp = datetime.fromtimestamp(now_s, UTC).isoformat()
    return {
        "timestamp": timestamp,
        "version": info.version,
        "accelerator": info.device.accelerator,
        "num_accelerators": info.device.num_accelerators,
        "loads": [_load(info, timestamp, sections)] if dp_rank in (None, 0) else [],
    }


def loads_as_gauges(body: Mapping[str, object]) -> str:
    """Return the loads as Prometheus text gauges, a section's keys behind a short prefix of its name."""
    prefixes = {"speculative": "spec_", "disaggregation": "disagg_"}
    lines: dict[str, list[str]] = {}
    for load in cast(list[dict[str, object]], body["loads"]):
        flat = dict(load)
        for section in [key for key, value in load.items() if isinstance(value, dict)]:
            prefix = prefixes.get(section, f"{section}_")
            flat |= {prefix + key: value for key, value in cast(dict[str, object], flat.pop(section)).items()}
        rank = flat.pop("dp_rank")
        for key, value in flat.items():
            if isinstance(value, int | float):
                lines.setdefault(key, [f"# TYPE sglang_{key} gauge"]).append(
                    f'sglang_{key}{{dp_rank="{rank}"}} {value}'
                )
    return "".join(f"{line}\n" for of_key in lines.values() for line in of_key)


def _model(info: Info) -> dict[str, object]:
    name = info.model.served_model_name
    return {
        "id": name,
        "object": "model",
        "created": info.started_s,
        "owned_by": "trnrt",
        "root": name,
        "parent": None,
        "max_model_len": info.model.context_length_tokens,
    }


def _load(info: Info, timestamp: str, sections: set[str]) -> dict[str, object]:
    load = info.load()
    total_tokens = load.total_pages * load.page_size_tokens
    used_tokens = _busy_pages(load) * load.page_size_tokens
    usage = round(_busy_pages(load) / load.total_pages, 4) if load.total_pages else 0.0
    entry: dict[str, object] = {
        "timestamp": timestamp,
        "dp_rank": 0,
        "num_running_reqs": load.running,
        "num_waiting_reqs": load.waiting,
        "num_waiting_uncached_tokens": load.waiting_tokens,
        "num_used_tokens": used_tokens,
        "num_total_tokens": used_tokens + load.waiting_tokens,
        "max_total_num_tokens": total_tokens,
        "max_running_requests": info.max_running_requests,
        "token_usage": usage,
        "gen_throughput": round(info.gen_throughput(), 2),
        "cache_hit_rate": round(info.cache_hit_rate(), 4),
        "utilization": round(load.running / info.max_running_requests, 4) if info.max_running_requests else 0.0,
    }
    if sections & {"memory", "all"}:
        entry["memory"] = _memory_gb(info, total_tokens)
    if sections & {"disagg", "all"}:
        entry["disaggregation"] = {"mode": "null"}
    if sections & {"queues", "all"}:
        entry["queues"] = {
            "waiting": load.waiting,
            "grammar": 0,
            "paused": load.running if load.is_paused else 0,
            "retracted": load.retracted,
            "prealloc_ready": 0,
        }
    return entry


def _busy_pages(load: Load) -> int:
    """Return the pages that requests and sessions hold: what only the cache holds counts as free, as in SGLang."""
    return load.used_pages - load.evictable_pages


def _memory(info: Info, total_tokens: int) -> dict[str, object]:
    device = info.device
    return {
        "weight": _gb(device.weight_bytes),
        "kvcache": _gb(device.cache_bytes),
        "graph": _gb(device.graph_bytes),
        "token_capacity": total_tokens,
    }


def _memory_gb(info: Info, total_tokens: int) -> dict[str, object]:
    memory = _memory(info, total_tokens)
    return {
        "weight_gb": memory["weight"],
        "kv_cache_gb": memory["kvcache"],
        "graph_gb": memory["graph"],
        "token_capacity": total_tokens,
    }


def _gb(size_bytes: int) -> float:
    return round(size_bytes / 2**30, 2)
