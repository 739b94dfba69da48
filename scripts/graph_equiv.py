"""Shows that graphs are what they were: every graph exported on fake tensors, written canonically and fingerprinted.

    python scripts/graph_equiv.py              export all and write tests/golden/graphs.json
    python scripts/graph_equiv.py --check      exit 1 where the list would change
    python scripts/graph_equiv.py --against REV    the same of another commit's tree, and a diff of what differs
    python scripts/graph_equiv.py --show NAME  the canonical text of graphs whose name holds NAME

A list holds the graphs of one preset and model: the halves of layers and parts of the ending that are compiled, and
what a CPU step runs around them. The published model has its config and no weights: none are needed. With flags that
allow edits a list holds only what they add. --quick leaves the published model out, as scripts/check does.

Canonical text has one operator a line: results numbered, sizes that stay open named s0, s1, .. with their ranges, so
that equal text is an equal graph. It depends on torch's own decompositions, hence the version beside the list.
"""

import argparse
import difflib
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "tests/golden/graphs.json"
MODELS = {"demo": None, "published": ROOT / "tests/golden/published"}
# A name for the list, and the flags besides the preset's; a tree without such a flag has no such list.
FLAGS: Mapping[str, Mapping[str, object]] = {"": {}, "+edits": {"structured_outputs": True, "penalties": True}}
NO_TENSOR_PARALLEL = (
    "Tensor parallel: graphs/ has no sharded form of a layer yet, so there is nothing to export for 32 ranks; "
    "the published model's graphs above are whole, as one device would run them."
)
Texts = dict[str, dict[str, str]]


# ---------------------------------------------------------------------------------------------------------------------
# One tree's graphs; what is imported is the tree's own
# ---------------------------------------------------------------------------------------------------------------------


def export_all(models: Iterable[str], note: Callable[[str], None]) -> Texts:
    """Return canonical text by graph by list, for every preset of the tree on sys.path."""
    from attrs import fields

    from trnrt.config import Config
    from trnrt.presets import PRESETS

    known = {field.name for field in fields(Config)}
    found: Texts = {}
    for model in models:
        for preset in PRESETS:
            for suffix, flags in FLAGS.items():
                if flags.keys() <= known:
                    name = f"{model} {preset}{suffix}"
                    note(name)
                    plain = found.get(f"{model} {preset}", {})
                    found[name] = dict(export_list(model, preset, flags, plain.keys()))
    return found


def export_list(
    model: str, preset: str, flags: Mapping[str, object], known: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yield (graph, canonical text) of one preset and model, but of those `known`."""
    from graphs.catalog import bodies
    from graphs.config import Config as ModelConfig
    from trnrt.config import config_of
    from trnrt.resolve import resolve
    from trnrt.served import DEMO_FILES, read_served_model
    from trnrt.shapes import graph_settings

    folder = MODELS[model]
    given: dict[str, Any] = {"preset": preset, **flags}
    if folder is not None:
        given |= {"model_path": str(folder), "tokenizer_path": str(DEMO_FILES)}
    config = config_of(given, {})
    served = read_served_model(config)
    settings = graph_settings(resolve(config, served), served.settings)
    model_config = ModelConfig.read(folder or DEMO_FILES)
    for body in (body for body in bodies(model_config, settings) if body.name not in known):
        yield body.name, canonical(captured(body, model_config, settings))
    if not known:
        yield from export_around(model_config, settings)


def captured(body: Any, config: Any, settings: Any) -> Any:
    """Return the captured program of a body, by this tree's or an older one's way."""
    from graphs import capture, compile

    return getattr(compile, "captured", capture.capture)(body, config, settings)


def export_around(config: Any, settings: Any) -> Iterator[tuple[str, str]]:
    """Yield (name, canonical text) of what a CPU step runs itself: embedding, head, and each variant over any rows."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.export import Dim

    from graphs.capture import _Function
    from graphs.catalog import variants
    from graphs.layers.sampling import PLAIN, DrawRows
    from graphs.models.glm5_next import embed, hidden, logits
    from graphs.variant import Ending

    rows, dtype = Dim("rows", min=2, max=1024), getattr(torch, settings.dtype)

    def export(function: Callable[..., object], *inputs: Any, opened: int) -> str:
        dims = tuple({0: rows} if index < opened else None for index in range(len(inputs)))
        return canonical(torch.export.export(_Function(function), inputs, dynamic_shapes=(dims,), strict=False))

    with FakeTensorMode(), torch.no_grad():
        streams = torch.zeros(2, config.num_streams, config.hidden_size, dtype=dtype)
        table, norm = torch.zeros(config.vocab_size, config.hidden_size, dtype=dtype), streams[0, 0].clone()
        ints, floats = torch.zeros(2, dtype=torch.int64), torch.zeros(2)
        wide = torch.zeros(2, config.vocab_size)
        yield "embed", export(lambda tokens, w: embed(config, {"embed": w}, tokens), ints[:, None], table, opened=1)
        yield (
            "head",
            export(
                lambda streams, norm, head: logits({"head": head}, hidden(config, {"norm": norm}, streams)),
                *(streams, norm, table),
                opened=1,
            ),
        )
        for name, variant in variants().items():

            def choose(wide: Any, *columns: Any, variant: Any = variant) -> object:
                chosen = variant.choose(Ending(wide, DrawRows(*columns[:5]), columns[5], PLAIN, 20))
                return tuple(part for part in chosen if part is not None)

            inputs = (wide, floats, ints, floats.clone(), floats.clone(), ints.clone(), ints.clone())
            yield f"choose-{name}", export(choose, *inputs, opened=7)


# ---------------------------------------------------------------------------------------------------------------------
# Canonical text
# ---------------------------------------------------------------------------------------------------------------------


def canonical(program: Any) -> str:
    """Return the text of an exported program: inputs, operators in order with types and shapes, results, ranges."""
    names: dict[str, str] = {}
    symbols: dict[str, str] = {}

    def renamed(text: str) -> str:
        return re.sub(r"\b[su]\d+\b", lambda match: symbols.setdefault(match.group(), f"s{len(symbols)}"), text)

    def shape_of(value: Any) -> str:
        if isinstance(value, list | tuple):
            return "(" + ", ".join(shape_of(item) for item in value) + ")"
        if hasattr(value, "dtype"):
            sizes = ", ".join(str(size) for size in value.shape)
            return renamed(f"{str(value.dtype).removeprefix('torch.')}[{sizes}]")
        return renamed(str(value))

    def argument(value: Any) -> str:
        if type(value).__name__ == "Node":
            return names[value.name]
        if isinstance(value, list | tuple):
            return "[" + ", ".join(argument(item) for item in value) + "]"
        return renamed(str(value))

    lines = []
    inputs = {spec.arg.name: spec.kind.name.lower() for spec in program.graph_signature.input_specs}
    for node in program.graph.nodes:
        names[node.name] = f"%{len(names)}"
        given = [argument(value) for value in node.args]
        given += [f"{name}={argument(value)}" for name, value in sorted(node.kwargs.items())]
        if node.op == "placeholder":
            lines.append(f"{names[node.name]} = {inputs.get(node.name, 'input')} : {shape_of(node.meta['val'])}")
        elif node.op == "output":
            lines.append(f"return {', '.join(given)}")
        else:
            target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", node.target)
            made = f" : {shape_of(node.meta['val'])}" if "val" in node.meta else ""
            lines.append(f"{names[node.name]} = {target}({', '.join(given)}){made}")
    for name, value in program.constants.items():
        digest = hashlib.sha256(value.cpu().numpy().tobytes()).hexdigest()[:16] if hasattr(value, "cpu") else value
        lines.append(f"constant {name} = {digest}")
    ranges = {renamed(str(symbol)): bounds for symbol, bounds in program.range_constraints.items()}
    lines += [f"{symbol} in {bounds}" for symbol, bounds in sorted(ranges.items(), key=lambda item: item[0])]
    return "\n".join(lines) + "\n"


def summary(text: str) -> str:
    """Return fingerprint, number of inputs and operators, and what comes out."""
    lines = text.splitlines()
    made = dict(line.split(" = ", 1) for line in lines if line.startswith("%"))
    num_inputs = sum("(" not in line.split(" : ")[0] for line in made.values())
    returned = next(line for line in lines if line.startswith("return "))
    shapes = [made[name].rsplit(" : ", 1)[-1] for name in re.findall(r"%\d+", returned)]
    shape = ", ".join(shapes)
    fingerprint = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{fingerprint} {num_inputs} inputs, {len(made) - num_inputs} operators -> {shape}"


# ---------------------------------------------------------------------------------------------------------------------
# Lists and differences
# ---------------------------------------------------------------------------------------------------------------------


def text_of(texts: Texts) -> str:
    """Return the golden file's text: one line a graph, so that a diff names those that changed."""
    import torch

    lines = [f'"torch": {json.dumps(torch.__version__.split("+")[0])}']
    for name, graphs in texts.items():
        rows = ",\n".join(f"  {json.dumps(graph)}: {json.dumps(summary(text))}" for graph, text in graphs.items())
        lines.append(f"{json.dumps(name)}: {{\n{rows}\n}}" if rows else f"{json.dumps(name)}: {{}}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def differences(before: Texts, after: Texts) -> Iterator[str]:
    """Yield what differs: lists and graphs that came or went, and a diff of those that changed."""
    for name in [*before, *(name for name in after if name not in before)]:
        old, new = before.get(name, {}), after.get(name, {})
        same = sum(old.get(graph) == text for graph, text in new.items())
        yield f"{name}: {same} of {len(old)} graphs as they were"
        yield from (f"  + {graph}: {summary(new[graph])}" for graph in new if graph not in old)
        yield from (f"  - {graph}: {summary(old[graph])}" for graph in old if graph not in new)
        for graph in old:
            if graph in new and old[graph] != new[graph]:
                yield f"  ! {graph}"
                lines = difflib.unified_diff(
                    unnumbered(old[graph]), unnumbered(new[graph]), "before", "after", lineterm="", n=2
                )
                yield from (f"    {line}" for line in lines)


def unnumbered(text: str) -> list[str]:
    """Return lines with results named by how far back they were made: one operator more changes few lines."""
    made: dict[str, int] = {}
    lines = []
    for index, line in enumerate(text.splitlines()):
        name, equals, rest = line.partition(" = ")
        is_made = bool(equals) and name.startswith("%")
        body = rest if is_made else line
        lines.append(re.sub(r"%\d+", lambda match, at=index: f"<{at - made[match.group()]}", body))
        if is_made:
            made[name] = index
    return lines


def texts_of_commit(revision: str, models: Iterable[str]) -> Texts:
    """Return the lists of another commit, exported by this script in a worktree of its own."""
    with tempfile.TemporaryDirectory(prefix="graph-equiv-") as scratch:
        tree = Path(scratch) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", "--quiet", str(tree), revision], check=True)
        try:
            command = [sys.executable, "-W", "ignore", __file__, "--tree", str(tree), "--models", ",".join(models)]
            found: Texts = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=tree).stdout)
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
    return found


def check(texts: Texts, known: str) -> list[str]:
    """Return the lines that are not as the golden file has them; lists that were not exported are not compared."""
    old, new = json.loads(known), json.loads(text_of(texts))
    if old["torch"] != new["torch"]:
        return [f"the list was made with torch {old['torch']}, this is {new['torch']}: make it anew and compare"]
    found = []
    for name, graphs in new.items():
        if name != "torch":
            before = old.get(name, {})
            changed = sorted({*before.items()} ^ {*graphs.items()})
            found += [f"{'-' if before.get(graph) == line else '+'} {name}: {graph}: {line}" for graph, line in changed]
    return found


def main() -> int:
    """Write the golden list, or check or compare it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where the list would change")
    parser.add_argument("--against", metavar="REV", help="compare with another commit; exit 1 where a graph changed")
    parser.add_argument("--show", metavar="NAME", help="print canonical texts")
    parser.add_argument("--quick", action="store_true", help="without the published model")
    parser.add_argument("--tree", type=Path, default=ROOT, help=argparse.SUPPRESS)
    parser.add_argument("--models", type=lambda text: text.split(","), help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.path.insert(0, str(options.tree))
    models = options.models or [name for name in MODELS if not (options.quick and name == "published")]
    texts = export_all(models, lambda name: print(f"exporting {name}", file=sys.stderr))
    if options.tree != ROOT:
        print(json.dumps(texts))
        return 0
    if options.show is not None:
        for name, graphs in texts.items():
            for graph in (graph for graph in graphs if options.show in graph):
                print(f"# {name}: {graph}: {summary(graphs[graph])}\n{graphs[graph]}")
        return 0
    if options.against is not None:
        before = texts_of_commit(options.against, models)
        print(*differences(before, texts), NO_TENSOR_PARALLEL, sep="\n")
        old = [(name, graph, text) for name, graphs in before.items() for graph, text in graphs.items()]
        return int(any(texts.get(name, {}).get(graph) != text for name, graph, text in old))
    if options.check:
        found = check(texts, FILE.read_text())
        print(*(found or ["graphs are as the list has them"]), sep="\n")
        return int(bool(found))
    if options.quick:
        parser.error("--quick writes no list: it would lose the published model's")
    FILE.write_text(text_of(texts))
    print(*(f"{name}: {len(graphs)} graphs" for name, graphs in texts.items()), sep="\n")
    print(NO_TENSOR_PARALLEL)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
