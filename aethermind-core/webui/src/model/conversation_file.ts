/** Conversations as a file. Files are untrusted, so every field is checked. */

import type { SamplingSettings } from "../api/types";
import { newConversation, type Conversation, type Message, type Stats } from "./conversation";

const FORMAT = "aethermind-conversations";
const VERSION = 1;
const STATES = ["done", "stopped", "cut", "lost", "failed"] as const;
const SAMPLING = ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_tokens", "seed"] as const;
const STATS = ["firstTokenMs", "tokensPerSecond", "promptTokens", "cachedTokens"] as const;

type Json = Record<string, unknown>;

/** Download conversations as a JSON file. */
export function download(conversations: Conversation[], name: string): void {
  const text = JSON.stringify({ format: FORMAT, version: VERSION, conversations }, null, 2);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = `${name.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60) || "conversation"}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** The conversations of such a file, under new ids. Throws an Error with a message to show for any other file. */
export function parse(text: string): Conversation[] {
  let file: unknown;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("This file is not JSON.");
  }
  if (!isObject(file) || file.format !== FORMAT || !Array.isArray(file.conversations)) {
    throw new Error("This file holds no conversations of AetherMind.");
  }
  if (file.version !== VERSION) throw new Error(`This file has version ${String(file.version)}; ${VERSION} is known.`);
  return file.conversations.map(conversation);
}

function conversation(given: unknown): Conversation {
  if (!isObject(given) || !Array.isArray(given.messages)) throw new Error("A conversation in this file has no messages.");
  const messages = given.messages.map(message);
  checkTree(messages);
  const ids = new Set(messages.map((one) => one.id));
  const chosen = isObject(given.chosen) ? Object.entries(given.chosen) : [];
  return {
    ...newConversation(),
    title: textOr(given.title, "Imported chat"),
    isNamed: true,
    changedAt: numberOr(given.changedAt, Date.now()),
    system: textOr(given.system, ""),
    sampling: sampling(given.sampling),
    model: textOr(given.model, ""),
    messages,
    chosen: Object.fromEntries(chosen.filter((pair): pair is [string, string] => ids.has(pair[1] as string))),
  };
}

function message(given: unknown): Message {
  if (!isObject(given) || typeof given.id !== "string" || typeof given.content !== "string") {
    throw new Error("A message in this file has no id or no content.");
  }
  if (given.role !== "user" && given.role !== "assistant") throw new Error("A message in this file has no known role.");
  const read: Message = {
    id: given.id,
    parent: typeof given.parent === "string" ? given.parent : null,
    role: given.role,
    content: given.content,
    state: STATES.find((state) => state === given.state) ?? "lost",
  };
  if (typeof given.model === "string") read.model = given.model;
  if (typeof given.reasoning === "string") read.reasoning = given.reasoning;
  if (typeof given.error === "string") read.error = given.error;
  if (isObject(given.stats)) read.stats = stats(given.stats);
  return read;
}

/** Every parent comes before its children, so that there are no cycles. */
function checkTree(messages: Message[]): void {
  const known = new Set<string>();
  for (const one of messages) {
    if (!one.id || known.has(one.id) || (one.parent !== null && !known.has(one.parent))) {
      throw new Error("The messages of a conversation in this file do not fit together.");
    }
    known.add(one.id);
  }
}

function sampling(given: unknown): SamplingSettings {
  if (!isObject(given)) return {};
  const read: SamplingSettings = {};
  for (const name of SAMPLING) if (isNumber(given[name])) read[name] = given[name];
  if (Array.isArray(given.stop)) read.stop = given.stop.filter((one) => typeof one === "string");
  return read;
}

function stats(given: Json): Stats {
  const read: Stats = { answerTokens: numberOr(given.answerTokens, 0), isEstimate: given.isEstimate === true };
  for (const name of STATS) if (isNumber(given[name])) read[name] = given[name];
  return read;
}

function isObject(value: unknown): value is Json {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isNumber(value: unknown): value is number {
  return typeof value === "number" && Number.isFinite(value);
}

function textOr(value: unknown, otherwise: string): string {
  return typeof value === "string" ? value : otherwise;
}

function numberOr(value: unknown, otherwise: number): number {
  return isNumber(value) ? value : otherwise;
}
