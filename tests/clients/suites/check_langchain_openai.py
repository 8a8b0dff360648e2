# /// script
# dependencies = ["langchain-openai==1.7.4"]
# ///
"""langchain-openai: chats, streams, batches, tools, responses, structured output, texts, embeddings."""

from __future__ import annotations

from common import MODEL, PARAMETERS, URL, run
from langchain_common import asked, check_structured_outputs, check_tool_calls
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

OURS = {"model": MODEL, "base_url": f"{URL}/v1", "api_key": "none", "max_retries": 0}
chat = ChatOpenAI(**OURS, max_tokens=900)
TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": PARAMETERS}}


def check_chat() -> None:
    whole = chat.invoke(asked("Fine, and you, dear 世界?"))
    assert whole.content == "Fine, and you, dear 世界?"
    assert whole.usage_metadata["output_tokens"] > 1
    parts = list(chat.stream(asked("Fine, and you, dear 世界?")))
    assert "".join(str(part.content) for part in parts) == whole.content
    assert len(parts) > 2
    assert [one.content for one in chat.batch([asked(f"Answer {n}.") for n in range(3)])] == [
        f"Answer {n}." for n in range(3)
    ]


def check_tools() -> None:
    for bound in (chat.bind_tools([TOOL]), ChatOpenAI(**OURS, use_responses_api=True).bind_tools([TOOL])):
        check_tool_calls(bound)


def check_structured() -> None:
    check_structured_outputs(chat, TOOL)


def check_texts() -> None:
    assert isinstance(OpenAI(**OURS, max_tokens=8).invoke("Once upon a time"), str)


def check_embeddings() -> None:
    # By default the texts are sent as token ids of OpenAI's tokenizer.
    vectors = OpenAIEmbeddings(**OURS, check_embedding_ctx_length=False).embed_documents(["a fox", "a hen"])
    assert len(vectors) == 2


run("langchain-openai", check_chat, check_tools, check_structured, check_texts, check_embeddings)
