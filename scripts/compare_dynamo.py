"""Prints where Dynamo's parsers and ours say other things of the golden cases: python scripts/compare_dynamo.py PYTHON.

PYTHON is one that has the packages ai-dynamo-runtime and tokenizers. Each line is a parser, a case, and what each says;
"whole" is Dynamo's answer to the text in one frame, "stream" the one to a character a frame, where it is another.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.stages.detokenizer.parsers.cases import cases
from tests.stages.detokenizer.parsers.families import FAMILIES
from tests.stages.detokenizer.parsers.saying import TOOLS, say
from tests.stages.detokenizer.parsers.thoughts import THINKERS

# What the peer has not, or cannot run without a vocabulary of its own.
NOT_THERE = {"apertus2509", "deepseek_v4_1", "harmony", "interns1", "lfm2", "step3"}
NO_REASONING = {"gpt_oss", "deepseek_v4_1"}
NAMES = {"glm45": "glm47"}
PEER = Path(__file__).with_name("dynamo_peer.py")


def thoughts(name: str) -> dict[str, str]:
    each = THINKERS[name]
    block = f"{each.opening}%s{each.closing}{each.before_text}"
    return {
        "a block": block % "wh<y" + "ans",
        "no block": "plain < text",
        "text before": "\npre " + block % "why" + "ans",
        "two blocks": block % "a" + "mid" + block % "b" + "end",
        "no end": f"{each.opening}why",
        "end alone": f"why{each.closing}{each.before_text}ans",
        **{f"ended by {mark}": f"{each.opening}why{mark}x" for mark in each.exits},
    }


def main(python: str) -> None:
    asks = [
        ("tools", name, case, text) for name in FAMILIES if name not in NOT_THERE for case, text in cases(name).items()
    ]
    asks += [
        ("reasoning", name, case, text)
        for name in THINKERS
        if name not in NO_REASONING
        for case, text in thoughts(name).items()
    ]
    asks = [ask for ask in asks if ask[3].strip()]
    models = {
        f"{kind}-{name}": {
            "tool_parser": NAMES.get(name, name) if kind == "tools" else None,
            "reasoning_parser": name if kind == "reasoning" else None,
        }
        for kind, name, *_ in asks
    }
    work = {
        "models": models,
        "asks": [(f"{kind}-{name}", text, "stop") for kind, name, _, text in asks],
        "tools": [{"type": "function", "function": dict(tool.definition)} for tool in TOOLS],
    }
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "work.json", Path(folder) / "said.json"
        source.write_text(json.dumps(work))
        subprocess.run([python, str(PEER), str(source), str(target)], check=True)
        said = json.loads(target.read_text())
    num_same = 0
    for (kind, name, case, text), (whole, stream) in zip(asks, said, strict=True):
        ours = ours_of(kind, name, text)
        theirs = [each for each in (whole, stream) if comparable(each) != ours]
        num_same += not theirs
        if theirs:
            print(f"{kind} {name} | {case}\n    ours   {shown(ours)}")
            for label, each in (("whole", whole), ("stream", stream)):
                print(f"    {label:6} {'the same' if comparable(each) == ours else shown(comparable(each))}")
    print(f"{num_same} of {len(asks)} the same, whole and streamed")


def ours_of(kind: str, name: str, text: str) -> tuple[object, ...]:
    said = say([text], name if kind == "tools" else None, name if kind == "reasoning" else None)
    return said.content, said.reasoning, said.calls


def comparable(each: dict[str, object]) -> tuple[object, ...]:
    if "error" in each:
        return ("error", each["error"])
    calls = each["calls"]
    assert isinstance(calls, list)
    return each["content"], each["reasoning"], tuple((name, arguments) for name, arguments in calls)


def shown(said: tuple[object, ...]) -> str:
    return " ".join(repr(part) for part in said if part) or "nothing"


if __name__ == "__main__":
    main(*sys.argv[1:])
