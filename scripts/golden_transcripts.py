"""Writes every byte the golden calls of each API are answered with to tests/golden/transcripts/, or checks them."""

import argparse
import difflib
import logging
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.golden.transcripts import RECORDED, record  # noqa: E402  # the tests are not installed

FOLDER = ROOT / "tests/golden/transcripts"


def main() -> int:
    """Regenerate the files; with --check say which lines would change."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a file would change")
    is_check = parser.parse_args().check
    logging.getLogger("trnrt").setLevel(logging.CRITICAL)  # calls fail here on purpose
    num_changed = 0
    for name, api in RECORDED.items():
        file = FOLDER / f"{name}.txt"
        known, text = file.read_text() if file.exists() else "", record(api)
        if not is_check:
            file.write_text(text)
        changes = list(difflib.unified_diff(known.splitlines(), text.splitlines(), name, name, lineterm="", n=0))
        num_changed += len(changes)
        for line in changes:
            print(line)
    return int(is_check and bool(num_changed))


if __name__ == "__main__":
    sys.exit(main())
