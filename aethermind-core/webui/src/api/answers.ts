/** Asking the model: a new answer to a conversation, or more of one that was cut short. */

import { post, postJson, RefusedError } from "./http";
import { eventsOf } from "./sse";
import type { ChatTurn, SamplingSettings, StreamEvent, Usage } from "./types";

/** What a stream told: some text, why it ended, or what it took. */
export interface Part {
  text: string;
  /** What the model thought before it spoke, from servers that tell the two apart. */
  reasoning: string;
  finishReason?: string;
  usage?: Usage;
}

export interface Question {
  model: string;
  turns: ChatTurn[];
  sampling: SamplingSettings;
}

const STREAMED = { stream: true, stream_options: { include_usage: true } };

/** The parts of an answer to the conversation, as they come. */
export async function* answerTo(question: Question, signal: AbortSignal): AsyncGenerator<Part> {
  const { model, turns, sampling } = question;
  yield* parts(await post("/v1/chat/completions", { model, messages: turns, ...sampling, ...STREAMED }, signal));
}

/** What follows `begun`, the beginning of an answer to the conversation.
 *
 * The prompt is put together from token ids, because a chat template would close the answer that it is given.
 */
export async function* continuationOf(question: Question, begun: string, signal: AbortSignal): AsyncGenerator<Part> {
  const { model, turns, sampling } = question;
  const [asked, answered] = await Promise.all([
    postJson<Tokens>("/tokenize", { model, messages: turns }, signal),
    postJson<Tokens>("/tokenize", { model, prompt: begun }, signal),
  ]);
  const prompt = [...asked.tokens, ...answered.tokens];
  const room = asked.max_model_len - prompt.length;
  if (room < 1) throw new RefusedError(400, `The context holds ${asked.max_model_len} tokens and is full.`);
  const max_tokens = Math.min(sampling.max_tokens ?? room, room);
  yield* parts(await post("/v1/completions", { model, prompt, ...sampling, max_tokens, ...STREAMED }, signal));
}

interface Tokens {
  tokens: number[];
  max_model_len: number;
}

async function* parts(response: Response): AsyncGenerator<Part> {
  for await (const data of eventsOf(response)) {
    const event = JSON.parse(data) as StreamEvent;
    if (event.error) throw new RefusedError(500, event.error.message);
    const choice = event.choices?.[0];
    const text = choice?.delta?.content ?? choice?.text ?? "";
    const part: Part = { text, reasoning: choice?.delta?.reasoning_content ?? "" };
    if (choice?.finish_reason) part.finishReason = choice.finish_reason;
    if (event.usage) part.usage = event.usage;
    yield part;
  }
}
