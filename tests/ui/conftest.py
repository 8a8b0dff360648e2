"""A browser, the page in it, and the server behind it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from tests.ui.scripted_server import ScriptedServer

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SCREENSHOTS = Path(__file__).parents[2] / "build" / "ui-screenshots"
DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 780}

POLICY = "Content Security Policy"
"""In what Chromium says when the page tried something that its policy forbids."""

OpenPage = Callable[..., Page]

expect.set_options(timeout=20_000)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium. It is shut after each module: while it is open, no other event loop can run here."""
    if CHROMIUM is None:
        pytest.skip("The page needs a Chromium to be tried in: run 'make ui-tools' (as root, on Debian).")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    yield server
    server.stop()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Open an address in a fresh profile. Nothing on it may go wrong unseen, or be fetched from elsewhere."""
    contexts: list[BrowserContext] = []
    wrong: list[str] = []

    def start(
        address: str, *, viewport: dict[str, int] = DESKTOP, scheme: str = "light", may_be_refused: bool = False
    ) -> Page:
        context = browser.new_context(
            viewport=viewport, color_scheme=scheme, locale="en", reduced_motion="reduce", has_touch=viewport is PHONE
        )
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        if not may_be_refused:
            page.on("console", lambda said: wrong.append(said.text) if POLICY in said.text else None)
        page.on("request", lambda one: None if one.url.startswith((address, "blob:")) else wrong.append(one.url))
        page.goto(address)
        return page

    yield start
    for context in contexts:
        context.close()
    assert wrong == []


@pytest.fixture
def page(server: ScriptedServer, open_page: OpenPage) -> Page:
    return open_page(server.address)


def send(page: Page, text: str) -> None:
    """Write a message and press Enter, or on a phone, where Enter begins a new line, the button."""
    box = page.get_by_label("Message", exact=True)
    expect(page.get_by_label("Model", exact=True)).to_be_enabled()
    box.fill(text)
    if page.viewport_size == PHONE:
        page.get_by_label("Send").click()
    else:
        box.press("Enter")


def shot(page: Page, name: str) -> None:
    """Keep a picture of the page for people to look at."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png")
