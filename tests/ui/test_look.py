"""How the page looks, wide and narrow, light and dark; and that it works with the demo model behind it."""

from __future__ import annotations

from contextlib import closing

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect
from tests.server.conftest import await_idle, serving
from tests.ui.conftest import DESKTOP, PHONE, OpenPage, send, shot
from tests.ui.scripted_server import ScriptedServer

from aethermind import LLM, Runtime

ANSWER = """A **block table** maps the blocks of a sequence to slots of the cache: memory is given out in small pieces.

## How it is looked up

1. Divide the position by the block's size.
2. The quotient is an index into the table, the remainder an offset in the block.

```python
def slot(position: int, table: list[int], block_size: int = 16) -> int:
    \"\"\"Where the keys and values of a position are.\"\"\"
    block, offset = divmod(position, block_size)
    return table[block] * block_size + offset  # one multiplication, one addition
```

| block size | waste at worst | table for 2,048 tokens |
|---:|---:|---:|
| 16 | 15 tokens | 128 entries |
| 32 | 31 tokens | 64 entries |

> Small blocks waste less; large ones are read faster.

See `slot` above, or [the paper](https://arxiv.org/abs/2309.06180).
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_screenshots(server: ScriptedServer, open_page: OpenPage, viewport: dict[str, int], scheme: str) -> None:
    name = f"{'phone' if viewport is PHONE else 'desktop'}-{scheme}"
    page = open_page(server.address, viewport=viewport, scheme=scheme)
    expect(page.locator(".welcome p")).to_be_visible()
    check_width(page)
    shot(page, f"{name}-1-welcome")
    send(page, "Hello")
    server.next_question().finish()
    expect(page.locator(".stats")).to_be_visible()
    if viewport is PHONE:
        page.get_by_role("button", name="Conversations", exact=True).click()
    page.get_by_role("button", name="New chat").click()
    send(page, "What is a block table, and how is it looked up?")
    answer = server.next_question()
    answer.say(ANSWER)
    expect(page.locator(".hljs-keyword").first).to_be_visible()
    expect(page.get_by_label("Stop")).to_be_visible()
    shot(page, f"{name}-2-streaming")
    expect(page.locator("td[align=right]").first).to_have_text("16")
    expect(page.locator("pre[tabindex='0']")).to_have_count(1)
    answer.finish(cached=8)
    expect(page.locator(".stats")).to_be_visible()
    check_width(page)
    shot(page, f"{name}-3-answer")
    page.locator(".thread").evaluate("thread => thread.scrollTo(0, 0)")
    shot(page, f"{name}-4-top")
    if viewport is PHONE:
        page.get_by_role("button", name="Conversations", exact=True).click()
        expect(page.get_by_role("button", name="New chat")).to_be_in_viewport()
        shot(page, f"{name}-5-list")
        page.get_by_label("Close the list").click()
        expect(page.get_by_role("button", name="New chat")).not_to_be_in_viewport()
    page.get_by_label("Settings").click()
    shot(page, f"{name}-6-settings")
    check_names(page)


def test_the_theme_can_be_chosen_and_is_remembered(page: Page) -> None:
    def background() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    light = background()
    page.get_by_label("Theme: system").click()
    assert background() == light
    page.get_by_label("Theme: light").click()
    expect(page.get_by_label("Theme: dark")).to_be_visible()
    dark = background()
    assert dark != light
    page.reload()
    expect(page.get_by_label("Theme: dark")).to_be_visible()
    assert background() == dark


def test_the_demo_model_answers(runtime: Runtime, browser: Browser) -> None:
    with (
        LLM(device="cpu", dtype="float32", runtime=runtime, max_model_len=512) as llm,
        serving(llm) as address,
        browser.new_page(viewport=DESKTOP) as page,
    ):
        page.goto(address)
        page.get_by_role("button", name="Who are you?").click()
        answer = page.locator(".message.assistant")
        expect(answer.locator(".stats")).to_contain_text(" out")
        expect(answer.locator(".markdown")).to_contain_text("AetherMind")
        shot(page, "demo")
        page.get_by_label("Settings").click()
        page.get_by_label("Max tokens").fill("5")
        page.keyboard.press("Escape")
        send(page, "Tell me a story")
        expect(answer.last).to_contain_text("Cut at the most tokens allowed.")
        begun = answer.last.locator(".markdown").inner_text()
        answer.last.get_by_role("button", name="Continue").click()
        expect(answer.last.locator(".stats")).to_contain_text("10 out")
        assert answer.last.locator(".markdown").inner_text().startswith(begun)
        with httpx.Client(base_url=address) as http:
            await_idle(http)


def check_width(page: Page) -> None:
    """Nothing makes the page wider than its window."""
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")


def check_names(page: Page) -> None:
    """Whatever can be used has a name that a screen reader can say."""
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, textarea, a")].filter((element) =>
            !(element.ariaLabel || element.textContent.trim() || element.labels?.[0]?.textContent.trim())
        ).map((element) => element.outerHTML)"""
    )
    assert nameless == []


def test_the_page_below_a_path_of_a_proxy(server: ScriptedServer, browser: Browser) -> None:
    """A proxy that shows the server below /below/ and takes that off its requests."""
    elsewhere: list[str] = []
    address = f"{server.address.rstrip('/')}/below/"
    with closing(browser.new_context()) as context:
        context.route(f"{address}**", lambda route: route.continue_(url=route.request.url.replace("/below/", "/", 1)))
        page = context.new_page()
        page.on("request", lambda one: None if one.url.startswith((address, "blob:")) else elsewhere.append(one.url))
        page.goto(address)
        send(page, "Show me Python.")
        answer = server.next_question()
        answer.say("```python\nreturn 1\n```\n")
        answer.finish()
        expect(page.locator(".stats")).to_be_visible()
        expect(page.locator(".hljs-keyword").first).to_be_visible()
    assert elsewhere == []
