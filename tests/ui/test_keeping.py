"""What stays: conversations in the browser, files of them, and answers whose page or server went away."""

from __future__ import annotations

import json
from pathlib import Path

from playwright.sync_api import Page, expect
from tests.ui.conftest import send, shot
from tests.ui.scripted_server import ScriptedServer


def talk(page: Page, server: ScriptedServer, question: str, answer: str) -> None:
    """A new conversation of one turn."""
    page.get_by_role("button", name="New chat").click()
    send(page, question)
    answering = server.next_question()
    answering.say(answer)
    answering.finish()
    expect(page.locator(".message.assistant .stats")).to_be_visible()


def titles(page: Page) -> list[str]:
    return page.locator(".row .title").all_inner_texts()


def choose(page: Page, title: str, action: str) -> None:
    page.get_by_label(f"More about {title}").click()
    page.get_by_role("menuitem", name=action).click()


def test_conversations_are_found_renamed_deleted_and_brought_back(page: Page, server: ScriptedServer) -> None:
    talk(page, server, "About foxes", "They are quick.")
    talk(page, server, "About bread", "It rises.")
    assert titles(page) == ["About bread", "About foxes"]
    assert page.title() == "About bread · AetherMind"
    page.get_by_role("button", name="About foxes", exact=True).click()
    expect(page.locator(".message.assistant")).to_contain_text("They are quick.")
    search = page.get_by_label("Search conversations")
    search.fill("RISES")
    expect(page.locator(".row .title")).to_have_text(["About bread"])
    search.fill("")

    choose(page, "About foxes", "Rename")
    page.get_by_label("Title").fill("Foxes, mostly")
    page.get_by_label("Title").press("Enter")
    expect(page.locator(".row .title")).to_have_text(["About bread", "Foxes, mostly"])
    choose(page, "About bread", "Delete")
    expect(page.locator(".row .title")).to_have_text(["Foxes, mostly"])
    shot(page, "deleted")
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".row .title")).to_have_count(2)
    choose(page, "About bread", "Delete")
    page.reload()
    expect(page.locator(".row .title")).to_have_text(["Foxes, mostly"])


def test_a_file_brings_conversations_to_another_browser(page: Page, server: ScriptedServer, tmp_path: Path) -> None:
    talk(page, server, "About foxes", "They are quick.")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export all").click()
    file = tmp_path / "chats.json"
    download.value.save_as(file)
    assert json.loads(file.read_text())["conversations"][0]["messages"][1]["content"] == "They are quick."
    choose(page, "About foxes", "Delete")
    page.get_by_label("File with conversations").set_input_files(file)
    expect(page.locator(".row .title")).to_have_text(["About foxes"])
    expect(page.locator(".message.assistant")).to_contain_text("They are quick.")


def test_a_file_that_is_none_is_refused_in_a_sentence(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "chats.json"
    looping = {"messages": [{"id": "a", "parent": "a", "role": "user", "content": ""}]}
    wrong = {"format": "aethermind-conversations", "version": 1, "conversations": [looping]}
    for text, sentence in (
        ("<html>", "not JSON"),
        ('{"conversations": []}', "no conversations of AetherMind"),
        (json.dumps({**wrong, "version": 9}), "version 9"),
        (json.dumps({**wrong, "conversations": [{}]}), "has no messages"),
        (json.dumps(wrong), "do not fit together"),
    ):
        file.write_text(text)
        page.get_by_label("File with conversations").set_input_files(file)
        expect(page.locator(".toast")).to_contain_text(sentence)
    assert titles(page) == []


def test_a_reload_in_mid_answer_keeps_what_was_written(page: Page, server: ScriptedServer) -> None:
    send(page, "Tell me")
    answer = server.next_question()
    answer.say("Once upon a time")
    expect(page.locator(".message.assistant")).to_contain_text("Once upon a time")
    page.reload()
    answer.await_left()
    answered = page.locator(".message.assistant")
    expect(answered).to_contain_text("Once upon a time")
    expect(answered).to_contain_text("The connection was lost before the end.")
    answered.get_by_role("button", name="Continue").click()
    more = server.next_question()
    more.say(", there was a fox.")
    more.finish()
    expect(answered.locator(".markdown")).to_have_text("Once upon a time, there was a fox.")


def test_two_tabs_show_the_same(page: Page, server: ScriptedServer) -> None:
    other = page.context.new_page()
    other.goto(server.address)
    send(page, "About foxes")
    answer = server.next_question()
    answer.say("They are")
    other.get_by_role("button", name="About foxes", exact=True).click()
    expect(other.locator(".message.assistant")).to_contain_text("They are")
    answer.say(" quick.")
    answer.finish()
    expect(other.locator(".message.assistant")).to_contain_text("They are quick.")
    choose(other, "About foxes", "Delete")
    expect(page.locator(".row")).to_have_count(0)
    expect(page.get_by_role("heading", name="What is on your mind?")).to_be_visible()


def test_a_server_that_goes_and_comes_back(page: Page, server: ScriptedServer) -> None:
    send(page, "Tell me")
    answer = server.next_question()
    answer.say("Once upon")
    expect(page.locator(".message.assistant")).to_contain_text("Once upon")
    server.stop()
    expect(page.locator(".banner")).to_contain_text("cannot be reached")
    expect(page.locator(".message.assistant")).to_contain_text("The connection was lost before the end.")
    page.get_by_label("Message", exact=True).fill("Are you there?")
    expect(page.get_by_label("Send")).to_be_disabled()
    shot(page, "offline")
    server.start()
    expect(page.locator(".banner")).to_be_hidden()
    page.get_by_label("Send").click()
    back = server.next_question()
    assert [turn["content"] for turn in back.body["messages"]] == ["Tell me", "Once upon", "Are you there?"]
    back.say("Yes.")
    back.finish()
    expect(page.locator(".message.assistant").last).to_contain_text("Yes.")
