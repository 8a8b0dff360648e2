/** A conversation is a tree: asking again or differently adds a branch beside the old one. All values are immutable. */

import type { ChatTurn, SamplingSettings } from "../api/types";
import { newId } from "./ids";

/** How far an answer came: `stopped` by hand, `cut` by max_tokens, `lost` with the connection or the page. */
export type State = "done" | "answering" | "stopped" | "cut" | "lost" | "failed";

/** What an answer took. Counts are estimates (`isEstimate`) until the server has told them. */
export interface Stats {
  firstTokenMs?: number;
  tokensPerSecond?: number;
  promptTokens?: number;
  cachedTokens?: number;
  answerTokens: number;
  isEstimate: boolean;
}

export interface Message {
  id: string;
  parent: string | null;
  role: "user" | "assistant";
  content: string;
  reasoning?: string;
  state: State;
  model?: string;
  error?: string;
  stats?: Stats;
}

export interface Conversation {
  id: string;
  title: string;
  /** Whether the title was given by hand; otherwise it follows the first message. */
  isNamed: boolean;
  changedAt: number;
  system: string;
  sampling: SamplingSettings;
  model: string;
  /** In the order in which they were written. */
  messages: Message[];
  /** The branch that is shown under a message; under "" are the beginnings. */
  chosen: Record<string, string>;
}

export function newConversation(like?: Pick<Conversation, "system" | "sampling" | "model">): Conversation {
  return {
    id: newId(),
    title: "New chat",
    isNamed: false,
    changedAt: Date.now(),
    system: like?.system ?? "",
    sampling: like?.sampling ?? {},
    model: like?.model ?? "",
    messages: [],
    chosen: {},
  };
}

/** The messages beside one: the branches to choose from, itself included. */
export function branches(conversation: Conversation, parent: string | null): Message[] {
  return conversation.messages.filter((message) => message.parent === parent);
}

/** The messages that are shown, first to last. */
export function path(conversation: Conversation): Message[] {
  const shown: Message[] = [];
  const children = new Map<string, Message[]>();
  for (const message of conversation.messages) {
    const parent = message.parent ?? "";
    children.set(parent, [...(children.get(parent) ?? []), message]);
  }
  for (let parent = ""; ; parent = shown.at(-1)!.id) {
    const options = children.get(parent);
    if (!options) return shown;
    shown.push(options.find((message) => message.id === conversation.chosen[parent]) ?? options.at(-1)!);
  }
}

export function newMessage(message: Omit<Message, "id">): Message {
  return { ...message, id: newId() };
}

/** With one more message, which is shown. */
export function withMessage(conversation: Conversation, message: Message): Conversation {
  const namesIt = message.parent === null && message.role === "user" && !conversation.isNamed;
  const next = {
    ...conversation,
    title: namesIt ? titleOf(message.content) : conversation.title,
    changedAt: Date.now(),
    messages: [...conversation.messages, message],
  };
  return choosing(next, message);
}

/** With a message changed. */
export function withChange(conversation: Conversation, id: string, change: Partial<Message>): Conversation {
  const messages = conversation.messages.map((message) => (message.id === id ? { ...message, ...change } : message));
  return { ...conversation, messages };
}

/** With the branch of this message shown. */
export function choosing(conversation: Conversation, message: Message): Conversation {
  return { ...conversation, chosen: { ...conversation.chosen, [message.parent ?? ""]: message.id } };
}

/** What the model is sent to answer `last`: the system prompt and the path down to it. */
export function turnsTo(conversation: Conversation, last: string | null): ChatTurn[] {
  const byId = new Map(conversation.messages.map((message) => [message.id, message]));
  const turns: ChatTurn[] = [];
  for (let at = last === null ? undefined : byId.get(last); at; at = byId.get(at.parent ?? "")) {
    turns.unshift({ role: at.role, content: at.content });
  }
  if (conversation.system.trim()) turns.unshift({ role: "system", content: conversation.system });
  return turns;
}

function titleOf(text: string): string {
  const line = text.trim().replace(/\s+/g, " ");
  return line.length > 60 ? `${line.slice(0, 59).trimEnd()}…` : line || "New chat";
}
