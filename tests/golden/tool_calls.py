"""What tool parsers make of every case, as a table to read; `python -m tests.golden.tool_calls` writes it anew."""

from pathlib import Path

from tests.stages.detokenizer.parsers.cases import cases
from tests.stages.detokenizer.parsers.families import FAMILIES
from tests.stages.detokenizer.parsers.saying import Said, say

FILE = Path(__file__).parent / "tool_calls.txt"


def shown(said: Said) -> str:
    calls = [
        f"{name}{arguments}" + (f" id {call_id}" if call_id else "")
        for (name, arguments), call_id in zip(said.calls, said.ids, strict=True)
    ]
    return " | ".join([*([repr(said.content)] if said.content else []), *calls]) or "nothing"


def rows(name: str) -> list[str]:
    return [f"  {case:34} {shown(say([text], name))}" for case, text in cases(name).items()]


def table() -> str:
    return "".join("\n".join([name, *rows(name)]) + "\n\n" for name in sorted(FAMILIES))


if __name__ == "__main__":
    FILE.write_text(table())
