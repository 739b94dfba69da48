"""Reads Prometheus' text format and says what is wrong with it, as promtool's linter would, and with our own rules."""

import math
import re
from collections import defaultdict

from attrs import define, field

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_SERIES = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"(?:,|$)')
_UNIT_WORDS = ("milliseconds", "minutes", "hours", "kilobytes", "megabytes", "percent")
Labels = tuple[tuple[str, str], ...]


@define
class Exposition:
    """What a text holds: types and helps by family, values by series."""

    types: dict[str, str] = field(factory=dict)
    helps: dict[str, str] = field(factory=dict)
    series: dict[tuple[str, Labels], float] = field(factory=dict)
    problems: list[str] = field(factory=list)

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of the series of a name that have these labels; raises KeyError for none."""
        found = [value for (own, has), value in self.series.items() if own == name and set(labels.items()) <= set(has)]
        if not found:
            raise KeyError((name, labels))
        return sum(found)


def read(text: str) -> Exposition:
    """Read a text and lint it."""
    read, family, closed = Exposition(), "", set[str]()
    if not text.endswith("\n"):
        read.problems.append("the last line has no end")
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")[2].partition(" ") if line.startswith("# ") else ("", "", "")
        if kind in ("HELP", "TYPE"):
            name, _, told = rest.partition(" ")
            if name != family:
                closed.add(family)
                family = name
                if name in closed:
                    read.problems.append(f"{name} stands in two places")
            table = read.helps if kind == "HELP" else read.types
            if name in table:
                read.problems.append(f"{name} has a second {kind}")
            table[name] = told
            continue
        match = _SERIES.fullmatch(line)
        if match is None:
            read.problems.append(f"not a series: {line!r}")
            continue
        name, inner, value = match.groups()
        labels = tuple(sorted(_LABEL.findall(inner or "")))
        if "".join(f'{key}="{told}",' for key, told in _LABEL.findall(inner or "")).rstrip(",") != (inner or ""):
            read.problems.append(f"labels are not right: {line!r}")
        if len({key for key, _ in labels}) < len(labels):
            read.problems.append(f"a label comes twice: {line!r}")
        if (name, labels) in read.series:
            read.problems.append(f"a series comes twice: {line!r}")
        if _family_of(name, read.types) != family:
            read.problems.append(f"{name} is not under its own TYPE")
        read.series[name, labels] = float(value)
    _lint(read)
    return read


def _family_of(name: str, types: dict[str, str]) -> str:
    if name in types:
        return name
    for suffix in ("_bucket", "_sum", "_count"):
        if name.endswith(suffix) and types.get(name.removesuffix(suffix)) == "histogram":
            return name.removesuffix(suffix)
    return ""


def _lint(read: Exposition) -> None:
    problems = read.problems
    for name, kind in read.types.items():
        if not _NAME.fullmatch(name):
            problems.append(f"{name} is no name")
        if not read.helps.get(name):
            problems.append(f"{name} has no HELP")
        if (kind == "counter") != name.endswith("_total"):
            problems.append(f"{name} is a {kind}: counters, and only they, end in _total")
        if any(word in name.split("_") for word in _UNIT_WORDS):
            problems.append(f"{name} is not in base units")
        if kind not in ("counter", "gauge", "histogram"):
            problems.append(f"{name} has the type {kind}")
        if kind != "histogram" and name.endswith(("_bucket", "_count", "_sum")):
            problems.append(f"{name} ends as a histogram's series do")
    for (name, labels), value in read.series.items():
        if math.isnan(value):
            problems.append(f"{name}{labels} is not a number")
        if value < 0 and read.types.get(_family_of(name, read.types)) != "gauge":
            problems.append(f"{name}{labels} is below 0")
        if any(key == "le" for key, _ in labels) != name.endswith("_bucket"):
            problems.append(f"{name}{labels}: le is for buckets")
    _lint_histograms(read)


def _lint_histograms(read: Exposition) -> None:
    buckets: defaultdict[tuple[str, Labels], list[tuple[float, float]]] = defaultdict(list)
    for (name, labels), value in read.series.items():
        if name.endswith("_bucket"):
            rest = tuple(pair for pair in labels if pair[0] != "le")
            buckets[name.removesuffix("_bucket"), rest].append((float(dict(labels)["le"]), value))
    for family in (name for name, kind in read.types.items() if kind == "histogram"):
        if not any(name == family for name, _ in buckets):
            read.problems.append(f"{family} has no buckets")
    for (family, labels), counts in buckets.items():
        if counts != sorted(counts):
            read.problems.append(f"{family}{labels}: buckets neither rise nor add up")
        if counts[-1][0] != math.inf:
            read.problems.append(f"{family}{labels} has no +Inf")
        if read.series.get((f"{family}_count", labels)) != counts[-1][1]:
            read.problems.append(f"{family}{labels}: the count is not that of +Inf")
        if (f"{family}_sum", labels) not in read.series:
            read.problems.append(f"{family}{labels} has no sum")
