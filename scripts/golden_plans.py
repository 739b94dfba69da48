"""Writes what the scheduler plans for each golden workload to tests/golden/plans.json, or checks that it is there."""

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.golden.plans import KINDS, SEEDS, record  # noqa: E402  # the tests are not installed

FILE = ROOT / "tests/golden/plans.json"


def text_of(records: dict[str, object]) -> str:
    """Return the file's text: one line a workload, so that a diff names those that changed."""
    lines = (f"{json.dumps(name)}: {json.dumps(record)}" for name, record in records.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> int:
    """Regenerate the file; with --check say which lines would change."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where the file would change")
    is_check = parser.parse_args().check
    text = text_of({f"{kind} {seed}": record(kind, seed) for kind in KINDS for seed in SEEDS})
    known = FILE.read_text() if FILE.exists() else ""
    changed = sorted(set(known.splitlines()) ^ set(text.splitlines()))
    if not is_check:
        FILE.write_text(text)
    for line in changed:
        print("-" if line in known else "+", line)
    return int(is_check and bool(changed))


if __name__ == "__main__":
    sys.exit(main())
