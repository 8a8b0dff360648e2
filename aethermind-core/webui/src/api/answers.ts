/** Streams a new answer to a conversation, or the continuation of one that was cut. */

import { post, postJson, HttpError } from "./http";
import { eventsOf } from "./sse";
import type { ChatTurn, SamplingSettings, StreamEvent, Usage } from "./types";

/** A delta of a streamed answer: text, the finish reason, or the token usage. */
export interface AnswerDelta {
  text: string;
  /** Text of the model's reasoning, if the server separates it from the answer. */
  reasoning: string;
  finishReason?: string;
  usage?: Usage;
}

export interface AnswerRequest {
  model: string;
  turns: ChatTurn[];
  sampling: SamplingSettings;
}

const STREAMED = { stream: true, stream_options: { include_usage: true } };

/** Stream an answer to the conversation. */
export async function* streamAnswer(request: AnswerRequest, signal: AbortSignal): AsyncGenerator<AnswerDelta> {
  const { model, turns, sampling } = request;
  yield* deltas(await post("/v1/chat/completions", { model, messages: turns, ...sampling, ...STREAMED }, signal));
}

/** Stream the continuation of `prefix`, the beginning of an answer to the conversation.
 *
 * The prompt consists of token ids, because a chat template would end the turn after the prefix.
 */
export async function* streamContinuation(request: AnswerRequest, prefix: string, signal: AbortSignal): AsyncGenerator<AnswerDelta> {
  const { model, turns, sampling } = request;
  const [conversation, answer] = await Promise.all([
    postJson<Tokens>("/tokenize", { model, messages: turns }, signal),
    postJson<Tokens>("/tokenize", { model, prompt: prefix }, signal),
  ]);
  const prompt = [...conversation.tokens, ...answer.tokens];
  const numLeft = conversation.max_model_len - prompt.length;
  if (numLeft < 1) throw new HttpError(400, `The context holds ${conversation.max_model_len} tokens and is full.`);
  const max_tokens = Math.min(sampling.max_tokens ?? numLeft, numLeft);
  yield* deltas(await post("/v1/completions", { model, prompt, ...sampling, max_tokens, ...STREAMED }, signal));
}

interface Tokens {
  tokens: number[];
  max_model_len: number;
}

async function* deltas(response: Response): AsyncGenerator<AnswerDelta> {
  for await (const data of eventsOf(response)) {
    const event = JSON.parse(data) as StreamEvent;
    if (event.error) throw new HttpError(500, event.error.message);
    const choice = event.choices?.[0];
    const text = choice?.delta?.content ?? choice?.text ?? "";
    const delta: AnswerDelta = { text, reasoning: choice?.delta?.reasoning_content ?? "" };
    if (choice?.finish_reason) delta.finishReason = choice.finish_reason;
    if (event.usage) delta.usage = event.usage;
    yield delta;
  }
}
