"""A headless Chromium for the tests of pages; without one they are skipped and say what is missing."""

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Give playwright's browser, one for all tests."""
    program = os.environ.get("TRNRT_CHROMIUM") or next(filter(None, map(shutil.which, PROGRAMS)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.skip("playwright is not installed: pip install -e '.[browser]'")
    if program is None:
        pytest.skip("no Chromium: install your system's chromium, or name one in TRNRT_CHROMIUM")
    with sync_playwright() as playwright:
        # Its sandbox does not start for root, as which containers run tests; the pages are our own.
        chromium = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield chromium
        chromium.close()
