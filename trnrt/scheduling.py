"""Config to SchedulerSettings, for every role that runs a scheduler."""

import json
from collections.abc import Mapping
from functools import partial

from stages.channels import Channels, open_channels
from stages.errors import ConfigError
from stages.scheduler.waiting import rank_of
from stages.settings import CacheSettings, PrioritySettings, SchedulerSettings
from trnrt.config import Config
from trnrt.shapes import MAX_PREFILL_ROWS, snapshot_slots


def scheduler_settings(config: Config, boundary_token_ids: frozenset[int] = frozenset()) -> SchedulerSettings:
    """Return what the scheduler needs of the settings; raises ConfigError for eviction parameters that are no JSON."""
    return SchedulerSettings(
        max_queued_requests=config.max_queued_requests,
        max_queued_tokens=config.max_queued_tokens,
        max_running_requests=config.max_running_requests,
        chunked_prefill_size_tokens=config.chunked_prefill_size,
        max_prefill_rows=MAX_PREFILL_ROWS,
        schedule_policy=config.schedule_policy,
        schedule_conservativeness=config.schedule_conservativeness,
        overlap=not config.disable_overlap_schedule,
        max_token_gap_s=config.max_token_gap,
        priority=_priority(config),
        cache=None if config.disable_radix_cache else _cache(config, boundary_token_ids),
        decode_log_interval=config.decode_log_interval,
    )


def engine_channels(settings: SchedulerSettings) -> Channels:
    """Return the channels of an engine with the queue that the settings ask for."""
    rank = None if settings.priority is None else partial(rank_of, settings=settings.priority)
    return open_channels(settings.max_queued_requests, settings.max_queued_tokens, rank)


def _priority(config: Config) -> PrioritySettings | None:
    if not config.enable_priority_scheduling:
        return None
    threshold = config.priority_scheduling_preemption_threshold
    return PrioritySettings(
        low_values_first=config.schedule_low_priority_values_first,
        default=config.default_priority_value,
        preemption_threshold=None if config.disable_priority_preemption else threshold,
    )


def _cache(config: Config, boundary_token_ids: frozenset[int]) -> CacheSettings:
    max_snapshots = snapshot_slots(config)
    max_pinned = max_snapshots // 4 if config.session_snapshots is None else config.session_snapshots
    parameters = _eviction_parameters(config.radix_eviction_policy_config)
    return CacheSettings(
        eviction_policy=config.radix_eviction_policy,
        eviction_parameters=parameters,
        max_snapshots=max_snapshots,
        stride_tokens=config.snapshot_stride,
        boundary_token_ids=boundary_token_ids,
        max_pinned=max_pinned,
    )


def _eviction_parameters(text: str | None) -> Mapping[str, float]:
    try:
        table = json.loads(text or "{}")
    except ValueError as error:
        raise ConfigError(f"--radix-eviction-policy-config: not JSON: {error}") from None
    if not isinstance(table, dict):
        raise ConfigError("--radix-eviction-policy-config: expected a JSON object")
    for name, value in table.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ConfigError(f"--radix-eviction-policy-config: {name}: expected a number, got {value!r}")
    return table
