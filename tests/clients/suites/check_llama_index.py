# /// script
# dependencies = [
#     "llama-index-core==0.14.25",
#     "llama-index-llms-openai-like==0.8.1",
#     "llama-index-embeddings-openai-like==0.4.0",
# ]
# ///
"""llama-index: chats, streams, an agent with a tool, structured output, and retrieval with embeddings."""

from __future__ import annotations

import asyncio

from common import CALL, CALLED, MODEL, SUNNY, URL, Person, run, script
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.node_parser import SentenceSplitter
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike

llm = OpenAILike(
    model=MODEL,
    api_base=f"{URL}/v1",
    api_key="none",
    is_chat_model=True,
    is_function_calling_model=True,
    context_window=32_000,
    max_tokens=900,
    max_retries=0,
)


def check_chat() -> None:
    messages = [ChatMessage(role="user", content=f"How? {script('Fine, and you?')}")]
    assert llm.chat(messages).message.content == "Fine, and you?"
    parts = list(llm.stream_chat(messages))
    assert "".join(part.delta or "" for part in parts) == "Fine, and you?"
    assert len(parts) > 2
    assert llm.complete(f"How? {script('Fine.')}").text == "Fine."


def check_agent() -> None:
    cities = []

    def weather(city: str) -> str:
        """The weather of a city."""
        cities.append(city)
        return "sunny"

    async def ask() -> str:
        agent = FunctionAgent(tools=[weather], llm=llm, system_prompt="Be kind.")
        return str(await agent.run(f"How? {script(f'I look.{chr(10)}{CALL}', SUNNY)}"))

    assert asyncio.run(ask()) == SUNNY
    assert cities == [CALLED["city"]]


def check_structured() -> None:
    answer = llm.as_structured_llm(Person).complete("Who?")
    assert isinstance(answer.raw, Person)


def check_retrieval() -> None:
    embed = OpenAILikeEmbedding(model_name=MODEL, api_base=f"{URL}/v1", api_key="none")
    documents = [Document(text="A fox sat by the sea."), Document(text=f"A hen. {script('The hen.')}")]
    splitter = SentenceSplitter(tokenizer=str.split)  # its own tokenizer is downloaded
    index = VectorStoreIndex.from_documents(documents, embed_model=embed, transformations=[splitter])
    assert str(index.as_query_engine(llm=llm, similarity_top_k=2).query("Who?")) == "The hen."


run("llama-index-core", check_chat, check_agent, check_structured, check_retrieval)
