"""What models and files say is shown, and does nothing."""

from __future__ import annotations

import json
from pathlib import Path

from playwright.sync_api import Page, expect
from tests.ui.conftest import OpenPage, send
from tests.ui.scripted_server import ScriptedServer

SIGN = "window.owned=1"
ATTACKS = f"""The end of it.

<img src=x onerror="{SIGN}"> and <script>{SIGN}</script> in a line

<script>{SIGN}</script>

<iframe srcdoc="<script>parent.{SIGN}</script>"></iframe>

<svg onload="{SIGN}"><math><mtext><style><img src=x onerror="{SIGN}"></style></mtext></math>

[a link](javascript:{SIGN}) and [another](data:text/html,<script>{SIGN}</script>) and <javascript:{SIGN}>

![an image](https://example.invalid/pixel.png?secret) and ![one](x" onerror="{SIGN})

| a | <img src=x onerror="{SIGN}"> |
|---|---|
| <details open ontoggle="{SIGN}"> | [x](vbscript:{SIGN}) |

```html"><img src=x onerror="{SIGN}">
<img src=x onerror="{SIGN}">
```

<form action="https://example.invalid"><input name=q autofocus onfocus="{SIGN}"></form>

[defined]: javascript:{SIGN}
[defined] <style>body {{ display: none }}</style> <a href="https://example.invalid" ping="https://example.invalid">x</a>
"""


def check_inert(page: Page) -> None:
    """Nothing ran, nothing was made that could, and the words are there to be read."""
    answer = page.locator(".message.assistant .markdown")
    expect(answer).to_contain_text("The end of it.")
    expect(answer).to_contain_text("<img src=x onerror=")
    expect(answer).to_contain_text(f"<script>{SIGN}</script> in a line")
    assert answer.locator("img, script, iframe, svg, math, style, form, input, details, object, embed").count() == 0
    assert (
        page.evaluate(
            """() => [...document.querySelectorAll(".thread *")].flatMap((element) =>
            [...element.attributes].filter(({ name, value }) =>
                name.startsWith("on") || name === "style" && element.tagName !== "TEXTAREA" || name === "srcdoc" ||
                /^(href|src|action)$/.test(name) && !/^(https?|mailto):/i.test(value)).map(({ name }) => name))"""
        )
        == []
    )
    assert page.evaluate("window.owned") is None
    assert set(answer.locator("a").evaluate_all("all => all.map(a => a.rel + a.target)")) <= {
        "noopener noreferrer_blank"
    }


def test_text_of_a_model_is_inert_while_it_streams_and_after(page: Page, server: ScriptedServer) -> None:
    send(page, f"<img src=x onerror={SIGN}>")
    answer = server.next_question()
    for start in range(0, len(ATTACKS), 40):
        answer.say(ATTACKS[start : start + 40])
    answer.finish()
    expect(page.locator(".stats")).to_be_visible()
    expect(page.locator(".bubble")).to_have_text(f"<img src=x onerror={SIGN}>")
    check_inert(page)
    page.reload()
    check_inert(page)


def test_an_imported_conversation_is_inert(page: Page, tmp_path: Path) -> None:
    hostile = f"<img src=x onerror={SIGN}>"
    conversation = {
        "title": hostile,
        "system": hostile,
        "model": hostile,
        "__proto__": {"isNamed": False},
        "chosen": {"__proto__": "b", "constructor": "a"},
        "messages": [
            {"id": "a", "parent": None, "role": "user", "content": hostile, "state": "done"},
            {"id": "b", "parent": "a", "role": "assistant", "content": ATTACKS, "state": "failed", "error": hostile},
        ],
    }
    file = tmp_path / "chats.json"
    file.write_text(json.dumps({"format": "aethermind-conversations", "version": 1, "conversations": [conversation]}))
    page.get_by_label("File with conversations").set_input_files(file)
    expect(page.locator(".row .title")).to_have_text(hostile)
    expect(page.get_by_role("alert")).to_contain_text(hostile)
    check_inert(page)


def test_html_enters_the_page_through_the_sanitiser_or_not_at_all(server: ScriptedServer, open_page: OpenPage) -> None:
    page = open_page(server.address, may_be_refused=True)
    refusal = page.evaluate(
        """() => {
            try { document.body.innerHTML = "<b>x</b>"; return "nothing"; } catch (error) { return error.name; }
        }"""
    )
    assert refusal == "TypeError"
