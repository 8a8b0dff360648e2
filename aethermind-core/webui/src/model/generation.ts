/** Generation: send or edit a message, regenerate, continue or stop an answer. */

import { signal } from "@preact/signals";

import { streamAnswer, streamContinuation, type AnswerDelta, type AnswerRequest } from "../api/answers";
import { UnreachableError, wasAborted } from "../api/http";
import { AnswerTimer } from "./answer_timer";
import { models, watchConnection } from "./connection";
import { branches, newMessage, turnsTo, withChange, withMessage, type Conversation, type Message } from "./conversation";
import { change, current, find } from "./library";

/** Milliseconds between updates of a growing answer: smooth to read, and cheap next to a model on the same machine. */
const SHOW_EVERY_MS = 60;

/** The running generation of each conversation. */
export const answering = signal<ReadonlyMap<string, AbortController>>(new Map());

/** Add a message after `parent` and generate an answer to it. */
export function sendMessage(conversation: Conversation, text: string, parent: string | null): void {
  const question = newMessage({ parent, role: "user", content: text, state: "done" });
  change(conversation.id, (now) => withMessage(now, question));
  answer(conversation.id, question);
}

/** Send another version of a message, as a new branch. */
export function editMessage(conversation: Conversation, message: Message, text: string): void {
  sendMessage(conversation, text, message.parent);
}

/** Generate another answer to the message before this answer, as a new branch. */
export function regenerate(conversation: Conversation, message: Message): void {
  const question = conversation.messages.find((other) => other.id === message.parent);
  if (question) answer(conversation.id, question);
}

/** Continue an answer that max_tokens or a lost connection has cut. */
export function continueAnswer(conversation: Conversation, message: Message): void {
  const request = answerRequest(conversation, message.parent);
  const timer = new AnswerTimer(message.stats?.answerTokens ?? 0);
  const open = (signal: AbortSignal) => streamContinuation(request, message.content, signal);
  change(conversation.id, (now) => withChange(now, message.id, { state: "answering", error: "" }));
  void streamInto(conversation.id, message, timer, open);
}

export function stop(conversation: Conversation): void {
  answering.value.get(conversation.id)?.abort();
}

function answer(id: string, question: Message): void {
  const conversation = find(id)!;
  const request = answerRequest(conversation, question.id, branches(conversation, question.id).length);
  const { model } = request;
  const message = newMessage({ parent: question.id, role: "assistant", content: "", state: "answering", model });
  change(id, (now) => withMessage(now, message));
  void streamInto(id, message, new AnswerTimer(), (signal) => streamAnswer(request, signal));
}

/** A fixed seed is increased for each further branch, so that regenerating gives another answer. */
function answerRequest(conversation: Conversation, last: string | null, numBranches = 0): AnswerRequest {
  const { seed, ...sampling } = conversation.sampling;
  return {
    model: modelOf(conversation),
    turns: turnsTo(conversation, last),
    sampling: seed === undefined ? sampling : { ...sampling, seed: seed + numBranches },
  };
}

/** A conversation's model if the server has it, otherwise the server's first. */
export function modelOf(conversation: Conversation): string {
  const has = models.value.some((model) => model.id === conversation.model);
  return has ? conversation.model : (models.value[0]?.id ?? "");
}

/** Append the deltas of a stream to a message until the stream ends or fails. */
async function streamInto(
  id: string,
  message: Message,
  timer: AnswerTimer,
  open: (signal: AbortSignal) => AsyncGenerator<AnswerDelta>,
): Promise<void> {
  const controller = new AbortController();
  answering.value.get(id)?.abort();
  answering.value = new Map(answering.value).set(id, controller);
  let { content, reasoning = "" } = message;
  let pendingUpdate = 0;
  const update = (more: Partial<Message>) => {
    clearTimeout(pendingUpdate);
    pendingUpdate = 0;
    change(id, (now) => withChange(now, message.id, { content, reasoning, stats: timer.stats, ...more }));
  };
  try {
    let finishReason = "";
    for await (const delta of open(controller.signal)) {
      if (delta.usage) timer.recordUsage(delta.usage);
      if (delta.finishReason) finishReason = delta.finishReason;
      if (!delta.text && !delta.reasoning) continue;
      timer.recordDelta();
      content += delta.text;
      reasoning += delta.reasoning;
      pendingUpdate ||= window.setTimeout(() => update({}), SHOW_EVERY_MS);
    }
    update({ state: finishReason === "length" ? "cut" : "done" });
  } catch (error) {
    update(finalState(error));
  } finally {
    if (answering.value.get(id) === controller) {
      const others = new Map(answering.value);
      others.delete(id);
      answering.value = others;
    }
  }
}

function finalState(error: unknown): Partial<Message> {
  if (wasAborted(error)) return { state: "stopped" };
  if (error instanceof UnreachableError) {
    void watchConnection();
    return { state: "lost", error: error.message };
  }
  return { state: "failed", error: error instanceof Error ? error.message : String(error) };
}

/** Stop the running generation of the open conversation; false if there is none. */
export function stopCurrentAnswer(): boolean {
  const isAnswering = answering.value.has(current.value.id);
  stop(current.value);
  return isAnswering;
}
