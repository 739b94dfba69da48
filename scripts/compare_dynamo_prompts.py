"""Prints where Dynamo's preprocessor and ours make other requests of the same chats, by cause.

    python scripts/compare_dynamo_prompts.py PYTHON [--all]

PYTHON is one that has the package ai-dynamo-runtime. Each line is a cause, how many cases it is found in, and whose
prompt is that of transformers; --all prints each case.
"""

import sys
from collections import Counter

from tests.dynamo.beside import prompt_text
from tests.dynamo.differences import compare_all, constraint, judgement, sampling


def main(python: str, show: str = "") -> None:
    compared = compare_all(python)
    counts: Counter[tuple[str, str]] = Counter()
    verdicts: dict[tuple[str, str], Counter[str]] = {}
    for each in compared.differences:
        key = (each.kind, each.cause.what if each.cause else "NO CAUSE IS KNOWN")
        counts[key] += 1
        verdict = judgement(each.case) if each.kind == "prompts" else "none"
        verdicts.setdefault(key, Counter())[verdict] += 1
        if show == "--all" or each.cause is None:
            print(f"{each.kind} {each.case.model} | {each.case.name} | {key[1]} | transformers: {verdict}")
            for label, answer in (("theirs", each.case.theirs), ("ours", each.case.ours)):
                print(f"    {label:6} {shown(each.kind, each.case.model, answer)}")
    for (kind, what), count in counts.items():
        found = ", ".join(f"{name} {number}" for name, number in verdicts[kind, what].items())
        print(f"{kind:11} {count:3}  {what}" + (f" (transformers: {found})" if kind == "prompts" else ""))
    for kind, number in compared.num_cases.items():
        print(f"{kind}: {number - sum(count for (of, _), count in counts.items() if of == kind)} of {number} the same")


def shown(kind: str, model: str, answer: object) -> str:
    assert isinstance(answer, dict)
    if kind == "prompts":
        return repr(prompt_text(model, answer))
    return str(constraint(answer) if kind == "constraints" else sampling(answer, {}))


if __name__ == "__main__":
    main(*sys.argv[1:])
