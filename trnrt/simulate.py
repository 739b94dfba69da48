"""`python -m trnrt simulate`: what a trace would see of a device under some settings, by the real scheduler.

Everything is decided by the arguments: no environment, no clock, no thread. Settings are serve's own flags of the
groups scheduler and cache; --compare runs the trace once for each of its settings, all else being equal.
"""

import argparse
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_type_hints

import attrs
from attrs import frozen

from stages.errors import ConfigError
from stages.settings import CacheSettings, SchedulerSettings
from trnrt.config import Config, config_of, convert, parser
from trnrt.scheduling import scheduler_settings
from trnrt.simulation.device_models import DEVICE_MODELS, DeviceModel, load_device_model
from trnrt.simulation.generator import SHAPES, generate
from trnrt.simulation.jsonl import read_jsonl
from trnrt.simulation.metrics import measure
from trnrt.simulation.replay import read_production_log
from trnrt.simulation.report import Report, Result, to_json, to_text
from trnrt.simulation.run import Answers, simulate
from trnrt.simulation.svg import to_svg
from trnrt.simulation.traces import USER, Trace

GROUPS = ("scheduler", "cache")
PLACEMENTS = get_args(get_type_hints(CacheSettings)["placement"])
GB = 1e9


@frozen(kw_only=True)
class SimulateFlags:
    """What simulate takes besides serve's flags."""

    trace: str = "agent"
    device_model: str = "trn2-tp32"
    compare: str | None = None
    num_requests: int | None = None
    load: float = 1.0
    seed: int = 0
    strip_reasoning: bool = False
    out: str | None = None
    svg: str | None = None
    json: bool = False


DEFAULT_REQUESTS = 300


@frozen(eq=False)
class Setting:
    """One column of the comparison."""

    name: str
    config: Config
    scheduler: SchedulerSettings
    placement: str | None = None

    @property
    def flags(self) -> Mapping[str, Any]:
        """Return what can be compared, by name."""
        placement = {} if self.placement is None else {"placement": self.placement}
        return {name: getattr(self.config, name) for name in _comparable()} | placement


def run_simulate(argv: Sequence[str]) -> int:
    """Simulate as argv says, print the table or JSON, write the files asked for; raises ConfigError naming a flag."""
    flags, given = _parse(argv)
    model = load_device_model(flags.device_model)
    settings = _settings(flags.compare, given, model)
    report = _simulate_all(flags, _trace(flags), model, settings)
    _write(flags, report)
    print(to_json(report) if flags.json else to_text(report), end="")
    return 0


def _simulate_all(flags: SimulateFlags, trace: Trace, model: DeviceModel, settings: Sequence[Setting]) -> Report:
    results = []
    for setting in settings:
        run = simulate(
            trace,
            setting.scheduler,
            model,
            seed=flags.seed,
            answers=Answers(flags.strip_reasoning),
            max_total_tokens=setting.config.max_total_tokens,
            host_cache_bytes=setting.config.host_cache_gb * GB,
            queue_timeout_s=setting.config.queue_timeout or math.inf,
        )
        results.append(Result(setting.name, setting.flags, run, measure(run)))
    return Report(trace.name, Path(flags.device_model).name, model.source, flags.seed, results)


def _trace(flags: SimulateFlags) -> Trace:
    if flags.trace in SHAPES:
        trace = generate(flags.trace, flags.num_requests or DEFAULT_REQUESTS, flags.seed)
    elif Path(flags.trace).is_dir():
        trace = read_production_log(Path(flags.trace), flags.num_requests)
    elif Path(flags.trace).exists():
        trace = read_jsonl(flags.trace, flags.num_requests)
    else:
        raise ConfigError(f"--trace: {flags.trace!r} is none of {', '.join(SHAPES)} and no file or folder")
    return trace if flags.load == 1.0 else trace.denser(flags.load)


def _write(flags: SimulateFlags, report: Report) -> None:
    files = {}
    if flags.svg is not None:
        files[Path(flags.svg)] = (to_svg, "--svg")
    if flags.out is not None:
        folder = Path(flags.out)
        files |= {folder / f"simulation.{end}": (make, "--out") for end, make in _FORMATS.items()}
    for path, (make, flag) in files.items():
        try:
            if flag == "--out":
                path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(make(report), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{flag}: cannot write {path}: {error.strerror}") from None


_FORMATS = {"txt": to_text, "json": to_json, "svg": to_svg}


# --- settings ---------------------------------------------------------------------------------------------------------


def _settings(compare: str | None, given: Mapping[str, Any], model: DeviceModel) -> list[Setting]:
    if compare is None:
        config = config_of(given, {}, model.defaults())
        return [Setting(config.schedule_policy, config, scheduler_settings(config, frozenset({USER})))]
    names = [name.strip() for name in _split(compare, ",")]
    if not all(names):
        raise ConfigError(f"--compare: a setting is empty in {compare!r}")
    if len(set(names)) < len(names):
        raise ConfigError(f"--compare: a setting stands twice in {compare!r}")
    return [_variant(name, given, model) for name in names]


def _variant(name: str, given: Mapping[str, Any], model: DeviceModel) -> Setting:
    """Return the setting that `name` says: a policy, or flag=value parts, joined by colons."""
    values, placement = dict(given), None
    for part in _split(name, ":"):
        flag, equals, text = part.partition("=")
        if not equals:
            flag, text = "schedule-policy", part
        field = flag.removeprefix("--").replace("-", "_")
        if field == "placement":
            placement = text
        elif field in _comparable():
            values[field] = convert(field, text, f"--compare: {flag}")
        else:
            raise ConfigError(f"--compare: there is no setting {flag!r} of the scheduler or the cache")
    try:
        config = config_of(values, {}, model.defaults())
    except ConfigError as error:
        raise ConfigError(f"--compare: {name}: {error}") from None
    return Setting(name, config, _placed(scheduler_settings(config, frozenset({USER})), placement), placement)


def _split(text: str, mark: str) -> list[str]:
    """Return the parts of `text` between marks, those inside the braces of a JSON object left alone."""
    return re.split(mark + r"(?![^{]*\})", text)


def _placed(settings: SchedulerSettings, placement: str | None) -> SchedulerSettings:
    """Return the settings with that placement of snapshots."""
    if placement is None:
        return settings
    if placement not in PLACEMENTS:
        raise ConfigError(f"--compare: placement: expected one of {', '.join(PLACEMENTS)}, got {placement!r}")
    if settings.cache is None:
        raise ConfigError("--compare: placement: there are no snapshots to place without the prefix cache")
    cache: Any = settings.cache
    return attrs.evolve(settings, cache=attrs.evolve(cache, placement=placement))


def _comparable() -> list[str]:
    return [field.name for field in attrs.fields(Config) if field.metadata["group"] in GROUPS]


# --- flags ------------------------------------------------------------------------------------------------------------


def simulate_parser() -> argparse.ArgumentParser:
    """Return the parser of simulate's own flags and of serve's for scheduler and cache."""
    result = parser(
        GROUPS,
        "python -m trnrt simulate",
        "Run a trace through the real scheduler with a timed device model, on a virtual clock.",
    )
    result.usage = "python -m trnrt simulate [--trace ...] [--device-model ...] [--compare ...] [flags of serve]"
    section = result.add_argument_group("simulation")
    section.add_argument(
        "--trace",
        help=f"{', '.join(SHAPES)}, a JSONL file, or the folder of a production log [agent]",
        metavar="NAME|PATH",
    )
    section.add_argument(
        "--device-model", help=f"{', '.join(DEVICE_MODELS)}, or a JSON file [trn2-tp32]", metavar="NAME|FILE"
    )
    section.add_argument(
        "--compare", help="settings to run one after the other: lpm,fcfs:flag=value,...", metavar="A,B"
    )
    section.add_argument(
        "--num-requests",
        type=_number(int, 1),
        help=f"requests of the trace [{DEFAULT_REQUESTS}; of a file or a log all]",
        metavar="INT",
    )
    section.add_argument(
        "--load", type=_number(float, 1e-6), help="how many times as densely conversations start [1]", metavar="FLOAT"
    )
    section.add_argument("--seed", type=_number(int, 0), help="of the trace and the order of tasks [0]", metavar="INT")
    section.add_argument("--strip-reasoning", action="store_true", help="later prompts leave out past reasoning")
    section.add_argument("--out", help="folder for simulation.txt, .json and .svg", metavar="FOLDER")
    section.add_argument("--svg", help="file for the picture", metavar="FILE")
    section.add_argument("--json", action="store_true", help="print JSON instead of the table")
    return result


def _parse(argv: Sequence[str]) -> tuple[SimulateFlags, dict[str, Any]]:
    given = vars(simulate_parser().parse_args(argv))
    own = {field.name: given.pop(field.name) for field in attrs.fields(SimulateFlags) if field.name in given}
    return SimulateFlags(**own), given


def _number(kind: type[int] | type[float], low: float) -> Any:
    def convert_text(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected a number, got {text!r}") from None
        if not low <= value < math.inf:
            raise argparse.ArgumentTypeError(f"must be at least {low:g}, got {text}")
        return value

    return convert_text
