/** What a person does with a conversation: ask, ask again, ask differently, stop, go on. */

import { signal } from "@preact/signals";

import { answerTo, continuationOf, type Part, type Question } from "../api/answers";
import { UnreachableError, wasAborted } from "../api/http";
import { AnswerClock } from "./clock";
import { models, watchConnection } from "./connection";
import { branches, newMessage, turnsTo, withChange, withMessage, type Conversation, type Message } from "./conversation";
import { change, current, find } from "./library";

/** How often the page shows what came: often enough to look alive, seldom enough to leave the machine to the model. */
const SHOW_EVERY_MS = 60;

/** The answers that are being written, by conversation. */
export const answering = signal<ReadonlyMap<string, AbortController>>(new Map());

/** Send a message after `parent`, and have it answered. */
export function ask(conversation: Conversation, text: string, parent: string | null): void {
  const asked = newMessage({ parent, role: "user", content: text, state: "done" });
  change(conversation.id, (now) => withMessage(now, asked));
  answer(conversation.id, asked);
}

/** Send a message in another wording, as a branch beside it. */
export function askDifferently(conversation: Conversation, message: Message, text: string): void {
  ask(conversation, text, message.parent);
}

/** Answer the message before this answer once more, as a branch beside it. */
export function askAgain(conversation: Conversation, message: Message): void {
  const asked = conversation.messages.find((one) => one.id === message.parent);
  if (asked) answer(conversation.id, asked);
}

/** Let the model go on where an answer was cut short. */
export function goOn(conversation: Conversation, message: Message): void {
  const question = questionTo(conversation, message.parent);
  const clock = new AnswerClock(message.stats?.answerTokens ?? 0);
  const parts = (signal: AbortSignal) => continuationOf(question, message.content, signal);
  change(conversation.id, (now) => withChange(now, message.id, { state: "answering", error: "" }));
  void follow(conversation.id, message, clock, parts);
}

export function stop(conversation: Conversation): void {
  answering.value.get(conversation.id)?.abort();
}

function answer(id: string, asked: Message): void {
  const conversation = find(id)!;
  const question = questionTo(conversation, asked.id, branches(conversation, asked.id).length);
  const { model } = question;
  const begun = newMessage({ parent: asked.id, role: "assistant", content: "", state: "answering", model });
  change(id, (now) => withMessage(now, begun));
  void follow(id, begun, new AnswerClock(), (signal) => answerTo(question, signal));
}

/** A fixed seed moves with each further branch: asking again is asking for something else. */
function questionTo(conversation: Conversation, last: string | null, numBranches = 0): Question {
  const { seed, ...sampling } = conversation.sampling;
  return {
    model: modelOf(conversation),
    turns: turnsTo(conversation, last),
    sampling: seed === undefined ? sampling : { ...sampling, seed: seed + numBranches },
  };
}

/** The model a conversation is with: its own if the server has it, otherwise the first. */
export function modelOf(conversation: Conversation): string {
  const has = models.value.some((model) => model.id === conversation.model);
  return has ? conversation.model : (models.value[0]?.id ?? "");
}

/** Write the parts into the message until they end, however they end. */
async function follow(
  id: string,
  message: Message,
  clock: AnswerClock,
  open: (signal: AbortSignal) => AsyncGenerator<Part>,
): Promise<void> {
  const controller = new AbortController();
  answering.value.get(id)?.abort();
  answering.value = new Map(answering.value).set(id, controller);
  let { content, reasoning = "" } = message;
  let timer = 0;
  const put = (more: Partial<Message>) => {
    clearTimeout(timer);
    timer = 0;
    change(id, (now) => withChange(now, message.id, { content, reasoning, stats: clock.stats, ...more }));
  };
  try {
    let finish = "";
    for await (const part of open(controller.signal)) {
      if (part.usage) clock.told(part.usage);
      if (part.finishReason) finish = part.finishReason;
      if (!part.text && !part.reasoning) continue;
      clock.tick();
      content += part.text;
      reasoning += part.reasoning;
      timer ||= window.setTimeout(() => put({}), SHOW_EVERY_MS);
    }
    put({ state: finish === "length" ? "cut" : "done" });
  } catch (error) {
    put(ending(error));
  } finally {
    if (answering.value.get(id) === controller) {
      const others = new Map(answering.value);
      others.delete(id);
      answering.value = others;
    }
  }
}

function ending(error: unknown): Partial<Message> {
  if (wasAborted(error)) return { state: "stopped" };
  if (error instanceof UnreachableError) {
    void watchConnection();
    return { state: "lost", error: error.message };
  }
  return { state: "failed", error: error instanceof Error ? error.message : String(error) };
}

/** Stop what is being written in the open conversation; false where nothing is. */
export function stopCurrent(): boolean {
  const isAnswering = answering.value.has(current.value.id);
  stop(current.value);
  return isAnswering;
}
