/** A conversation is a tree: a regenerated answer or an edited message adds a branch. All values are immutable. */

import type { ChatTurn, SamplingSettings } from "../api/types";
import { newId } from "./ids";

/** The state of a message: `stopped` by the user, `cut` by max_tokens, `lost` with the connection or the page. */
export type State = "done" | "answering" | "stopped" | "cut" | "lost" | "failed";

/** Token counts and speed of an answer. Counts are estimates (`isEstimate`) until the server sends its own. */
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
  /** Whether the user has set the title; otherwise it is the beginning of the first message. */
  isNamed: boolean;
  changedAt: number;
  system: string;
  sampling: SamplingSettings;
  model: string;
  /** In the order in which they were written. */
  messages: Message[];
  /** The id of the shown child of each message; the key "" is the root. */
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

/** The children of a message: the branches to choose from. */
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

/** The conversation with one more message, whose branch is shown. */
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

/** The conversation with a changed message. */
export function withChange(conversation: Conversation, id: string, change: Partial<Message>): Conversation {
  const messages = conversation.messages.map((message) => (message.id === id ? { ...message, ...change } : message));
  return { ...conversation, messages };
}

/** The conversation that shows the branch of this message. */
export function choosing(conversation: Conversation, message: Message): Conversation {
  return { ...conversation, chosen: { ...conversation.chosen, [message.parent ?? ""]: message.id } };
}

/** The request's messages for an answer to `last`: the system prompt and the path from the root to it. */
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
