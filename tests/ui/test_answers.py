"""Asking and being answered: streamed, stopped, continued, asked again and differently."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect
from tests.ui.conftest import send, shot
from tests.ui.scripted_server import ScriptedServer


def last_answer(page: Page) -> Locator:
    return page.locator(".message.assistant").last


def ask(page: Page, server: ScriptedServer, question: str, answer: str) -> None:
    """One turn, finished."""
    send(page, question)
    answering = server.next_question()
    answering.say(answer)
    answering.finish()
    expect(last_answer(page)).to_contain_text(answer)
    expect(page.get_by_label("Send")).to_be_visible()


def test_an_answer_streams_in_and_tells_what_it_took(page: Page, server: ScriptedServer) -> None:
    send(page, "Tell me")
    answer = server.next_question()
    assert answer.body["messages"] == [{"role": "user", "content": "Tell me"}]
    assert answer.body["stream_options"] == {"include_usage": True}
    assert answer.body["model"] == "storyteller"
    answer.say("Once upon")
    expect(last_answer(page)).to_contain_text("Once upon")
    expect(page.get_by_label("Stop")).to_be_visible()
    answer.say(" a time")
    expect(last_answer(page)).to_contain_text("Once upon a time")
    answer.finish(cached=4)
    stats = last_answer(page).locator(".stats")
    expect(stats).to_contain_text("12 tokens in (4 cached)")
    expect(stats).to_contain_text("7 out")
    expect(stats).to_contain_text("first token")
    expect(page.locator("[role=status].visually-hidden")).to_have_text("The answer: Once upon a time")
    ask(page, server, "And then?", "They lived.")


def test_escape_stops_and_continue_goes_on(page: Page, server: ScriptedServer) -> None:
    send(page, "Count")
    answer = server.next_question()
    answer.say("one, two,")
    expect(last_answer(page)).to_contain_text("one, two,")
    page.keyboard.press("Escape")
    answer.await_left()
    expect(last_answer(page)).to_contain_text("Stopped.")
    shot(page, "stopped")
    page.get_by_role("button", name="Continue").click()
    more = server.next_question()
    assert more.url == "/v1/completions"
    assert more.body["prompt"] == [1, 2, 3, 7, 8], "the tokens of the conversation, then of what was written"
    assert more.body["max_tokens"] == 4096 - 5
    more.say(" three")
    more.finish("length")
    expect(last_answer(page).locator(".markdown")).to_have_text("one, two, three")
    expect(last_answer(page)).to_contain_text("Cut at the most tokens allowed.")


def test_regenerating_and_editing_make_branches(page: Page, server: ScriptedServer) -> None:
    ask(page, server, "Pick a colour", "Red")
    page.get_by_label("Regenerate").click()
    again = server.next_question()
    assert [turn["content"] for turn in again.body["messages"]] == ["Pick a colour"]
    again.say("Blue")
    again.finish()
    expect(last_answer(page)).to_contain_text("Blue")
    expect(last_answer(page).locator(".place")).to_have_text("2/2")
    last_answer(page).get_by_label("Earlier branch").click()
    expect(last_answer(page)).to_contain_text("Red")
    ask(page, server, "Why?", "It is warm.")

    page.get_by_label("Edit").first.click()
    box = page.get_by_label("Edit message")
    expect(box).to_be_focused()
    expect(box).to_have_value("Pick a colour")
    shot(page, "editing")
    box.fill("Pick a number")
    box.press("Enter")
    edited = server.next_question()
    assert [turn["content"] for turn in edited.body["messages"]] == ["Pick a number"]
    edited.say("Seven")
    edited.finish()
    expect(page.locator(".message")).to_have_count(2)
    shot(page, "branches")
    page.locator(".message.user").first.get_by_label("Earlier branch").click()
    expect(page.locator(".message")).to_have_count(4)
    expect(last_answer(page)).to_contain_text("It is warm.")
    page.reload()
    expect(page.locator(".message")).to_have_count(4)


def test_thoughts_are_kept_apart_from_the_answer(page: Page, server: ScriptedServer) -> None:
    send(page, "Think")
    answer = server.next_question()
    answer.think("Let me see.")
    thoughts = last_answer(page).locator("details")
    expect(thoughts).to_have_text("ThoughtsLet me see.")
    answer.say("Seen.")
    answer.finish()
    expect(last_answer(page).locator(".markdown")).to_have_text("Seen.")
    send(page, "Go on")
    assert [turn["content"] for turn in server.next_question().body["messages"]] == ["Think", "Seen.", "Go on"]


def test_settings_and_the_model_go_with_the_request(page: Page, server: ScriptedServer) -> None:
    page.get_by_label("Settings").click()
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Temperature").fill("0.3")
    page.get_by_label("Max tokens").fill("50")
    page.get_by_label("Seed").fill("9")
    shot(page, "settings")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Settings")).to_be_focused()
    page.get_by_label("Model", exact=True).select_option("clerk")
    ask(page, server, "Hello", "Yes?")
    page.get_by_label("Regenerate").click()
    again = server.next_question()
    assert again.body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert again.body["model"] == "clerk"
    assert again.body["seed"] == 10, "asking again asks for something else"
    assert (again.body["temperature"], again.body["max_tokens"]) == (0.3, 50)
    assert "top_p" not in again.body, "what is left empty is the model's own"
    again.finish()
    page.get_by_role("button", name="New chat").click()
    page.get_by_label("Settings").click()
    expect(page.get_by_label("System prompt")).to_have_value("Be brief.")


def test_a_refusal_is_told_in_the_servers_words(page: Page, server: ScriptedServer) -> None:
    server.refusal = "The context holds 4096 tokens, the prompt has 5000."
    send(page, "Too long")
    expect(last_answer(page).get_by_role("alert")).to_contain_text("the prompt has 5000")
    server.refusal = None
    page.get_by_role("button", name="Try again").click()
    broken = server.next_question()
    broken.say("Half an")
    broken.fail("An engine has failed.")
    expect(last_answer(page).get_by_role("alert")).to_contain_text("An engine has failed.")
    expect(last_answer(page)).to_contain_text("Half an")
    shot(page, "failed")


def test_a_server_with_a_key_is_asked_with_it(server: ScriptedServer, page: Page) -> None:
    server.key = "sesame"
    page.reload()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Key").fill("wrong")
    dialog.get_by_label("Key").press("Enter")
    expect(dialog).to_contain_text("does not know this key")
    shot(page, "key")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Give it").click()
    expect(dialog.get_by_label("Key")).to_be_focused()
    dialog.get_by_label("Key").fill("sesame")
    dialog.get_by_label("Key").press("Enter")
    expect(dialog).to_be_hidden()
    ask(page, server, "Open", "Opened.")
    assert page.evaluate("JSON.stringify(localStorage)").count("sesame") == 0
    page.reload()
    expect(page.get_by_label("Model", exact=True)).to_be_enabled()


def test_lines_and_shortcuts_of_the_keyboard(page: Page, server: ScriptedServer) -> None:
    box = page.get_by_label("Message", exact=True)
    expect(box).to_be_focused()
    box.fill("one")
    box.press("Shift+Enter")
    page.keyboard.type("two")
    box.press("Enter")
    answer = server.next_question()
    assert answer.body["messages"][0]["content"] == "one\ntwo"
    answer.finish()
    page.keyboard.press("Control+k")
    expect(page.get_by_label("Search conversations")).to_be_focused()
    page.keyboard.press("Control+Shift+o")
    expect(box).to_be_focused()
    expect(page.get_by_role("heading", name="What is on your mind?")).to_be_visible()
    page.locator(".thread").focus()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("stop the answer")
    shot(page, "keyboard")
