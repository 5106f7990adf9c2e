"""Takes the pictures of the playground's guide from the page that the demo ships.

    python tools/pictures/playground.py docs/playground-demo.html docs

Writes playground-star.png and playground-belief.png into the folder. Needs Playwright; the environment variable
CHROMIUM names a browser that is installed, else Playwright's own is taken.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright


def main(page: Path, folder: Path) -> None:
    """Takes both pictures."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=os.environ.get("CHROMIUM"), args=["--no-sandbox"])
        shown = browser.new_page(viewport={"width": 1160, "height": 820})
        shown.goto(page.resolve().as_uri())
        shown.get_by_role("button", name="Close the tour").click()
        shown.screenshot(path=folder / "playground-star.png")
        shown.get_by_role("tab", name="Beliefs").click()
        for model in shown.get_by_role("checkbox").all()[:-1]:
            model.uncheck()
        shown.get_by_role("slider").fill("9")
        shown.locator("article").screenshot(path=folder / "playground-belief.png")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
