"""A headless Chromium, and what a page said or asked for in it.

It is that of HIERROUTER_CHROMIUM, one on the PATH, or the one `get_chromium.py` has fetched.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "chrome-headless-shell")
SIZES = {"desk": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}
OPEN_ALL = "document.querySelectorAll('details').forEach(item => { item.open = true })"
CONTRAST = 4.5  # WCAG 2.2, level AA
# Of each visible text the contrast to what is behind it (WCAG 2.2, relative luminance).
CONTRASTS = """(() => {
  const numbers = colour => colour.match(/[\\d.]+/g).map(Number).map(
    part => colour.startsWith('color(srgb') ? 255 * part : part)  // parts from 0 to 1 if mixed
  const linear = part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4
  const luminance = colour => {
    const [red, green, blue] = colour.slice(0, 3).map(part => linear(part / 255))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
  }
  const behind = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = numbers(getComputedStyle(at).backgroundColor)
      if (colour.length < 4 || colour[3] > 0) return colour
    }
    return [255, 255, 255]
  }
  const found = []
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim(), element = walker.currentNode.parentElement
    const read = element.checkVisibility() && !['title', 'desc'].includes(element.localName)
    if (!text || !read) continue
    const style = getComputedStyle(element)
    const colour = element.closest('svg') ? style.fill : style.color
    const [low, high] = [colour, null].map(
      own => luminance(own ? numbers(own) : behind(element))).sort((a, b) => a - b)
    found.push([text, (high + 0.05) / (low + 0.05)])
  }
  return found
})()"""


@pytest.fixture(scope="module", autouse=True)
def browser() -> Iterator[Any]:
    """Whoever lacks one skips these tests, before anything is made for them.

    For a module, not for the session: while it is there no other test can run an event loop.
    """
    sync_api = pytest.importorskip("playwright.sync_api")
    known = [os.environ.get("HIERROUTER_CHROMIUM"), *map(shutil.which, NAMES)]
    known += map(str, fetched("chromium-*/headless"))
    found = next(filter(None, known), None)
    if found is None:
        pytest.skip("no Chromium; HIERROUTER_CHROMIUM=$(python .ci/get_chromium.py)")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found)
        yield browser
        browser.close()


def fetched(name: str) -> list[Path]:
    """What `get_chromium.py` has fetched under such a name."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return sorted(cache.glob(f"hierrouter/{name}"))


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core; whoever lacks it skips."""
    found = fetched("axe-core-*/axe.min.js")
    return found[-1].read_text() if found else pytest.skip("no axe-core; .ci/get_chromium.py")


def barriers(page: Any, axe: str) -> list[str]:
    """What axe-core finds on a page, and where."""
    page.evaluate(axe)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [f"{one['id']}: {node['target']}" for one in found for node in one["nodes"]]


@contextmanager
def opened(
    browser: Any, file: Path, size: str = "desk", scheme: str = "light", fold: bool = False
) -> Iterator[tuple[Any, list[str]]]:
    """The page with all its cases unfolded, unless `fold`, and what it said or asked for."""
    context = browser.new_context(viewport=SIZES[size], color_scheme=scheme)
    page, log = context.new_page(), []
    page.on("console", lambda message: log.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: log.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (log.append("dialog"), dialog.dismiss()))
    page.on("request", lambda request: log.append(f"request: {request.url}"))
    page.goto(file.as_uri())
    if page.locator("#data").count():  # which is unpacked before anything can be drawn
        page.wait_for_selector("[role=option]", state="attached")
    if not fold:
        page.evaluate(OPEN_ALL)
    settle(page)  # a page draws in its first frame, which a busy machine shows late
    yield page, log
    context.close()


def settle(page: Any) -> None:
    """Until what was asked for has been drawn."""
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")


def faint(page: Any) -> list[str]:
    """Texts in sight that do not stand out enough."""
    return [text for text, contrast in page.evaluate(CONTRASTS) if contrast < CONTRAST]
