"""Takes the pictures of the dashboard for docs/img, or another folder, in headless Chromium."""

import math
import shutil
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests.browser.snapshots import busy, full  # noqa: E402
from tests.browser.stand import standing  # noqa: E402

DESKTOP, PHONE = {"width": 1280, "height": 830}, {"width": 390, "height": 844}


def healthy(at_s: int) -> dict[str, Any]:
    wave = math.sin(at_s / 23)
    return busy(
        running=18 + round(4 * wave), rate=900 + 120 * wave, wait_s=0.02 + 0.01 * wave, tokens=at_s, after_s=at_s
    )


def filling(at_s: int) -> dict[str, Any]:
    queued = max(0, at_s - 190)
    calm = healthy(at_s)
    return (
        full(queued=queued, wait_s=0.05 * queued, age_s=0.08 * queued, rate=1030, tokens=at_s, after_s=at_s)
        if queued
        else calm
    )


def refusing(at_s: int) -> dict[str, Any]:
    return full(
        queued=256, wait_s=9.1, age_s=15.0, refused={"queue_full": 37, "queue_timeout": 4}, tokens=at_s, after_s=at_s
    )


PICTURES: dict[str, tuple[Callable[[int], dict[str, Any]], str, dict[str, int]]] = {
    "dashboard-light": (healthy, "light", DESKTOP),
    "dashboard-dark": (filling, "dark", DESKTOP),
    "dashboard-phone": (refusing, "light", PHONE),
}


def main() -> None:
    from PIL import Image
    from playwright.sync_api import sync_playwright

    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "img"
    folder.mkdir(exist_ok=True)
    program = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for name, (make, scheme, viewport) in PICTURES.items():
            with standing() as stand:
                page = chromium.new_page(viewport=viewport, color_scheme=scheme, reduced_motion="reduce")
                page.goto(stand.url)
                stand.send(make(0))
                page.locator("#link[data-state=live]").wait_for()
                for at_s in range(1, 300):
                    stand.send(make(at_s))
                page.wait_for_timeout(2_500)
                picture = Image.open(BytesIO(page.screenshot()))
                # A palette of the page's few colours: a third of the size.
                picture.convert("RGB").quantize(128).save(folder / f"{name}.png", optimize=True)
                page.close()
        chromium.close()


if __name__ == "__main__":
    main()
