/** All conversations, and which one is open. Changes are written down as they are made. */

import { computed, signal } from "@preact/signals";

import { newConversation, type Conversation } from "./conversation";
import * as database from "./database";
import { leave, takeLeft } from "./leaving";
import { notify } from "./notices";
import { onChangeElsewhere, tellOthers } from "./other_tabs";
import { rememberedDefaults } from "./preferences";

/** A conversation is written down when it changes, and while an answer grows at most this often. */
const WRITE_EVERY_MS = 150;

export const conversations = signal<Conversation[]>([]);
export const openId = signal("");

/** The conversation on the page; one that has no message yet is in no list and is not kept. */
export const current = computed(() => conversations.value.find((one) => one.id === openId.value) ?? fresh.value);

const fresh = signal(newConversation());
let isKeeping = false;
const resting = new Map<string, number>();
const unwritten = new Set<string>();

/** Read what was kept. An answer that was being written when its page was closed is lost from there on. */
export async function loadLibrary(): Promise<void> {
  const wanted = location.hash.slice(1);
  try {
    await database.open();
    isKeeping = true;
    await Promise.all(takeLeft().map(database.write));
    const kept = await database.readAll();
    conversations.value = kept.map(withoutOpenAnswers).sort((a, b) => b.changedAt - a.changedAt);
  } catch {
    notify("Conversations cannot be kept in this browser window; they last until it is closed.");
  }
  if (find(wanted)) open(wanted);
  else startNew();
  onChangeElsewhere(takeOver);
}

export function find(id: string): Conversation | undefined {
  return id === fresh.value.id ? fresh.value : conversations.value.find((one) => one.id === id);
}

/** Replace a conversation by what `change` makes of it. */
export function change(id: string, change: (conversation: Conversation) => Conversation): void {
  const before = find(id);
  if (!before) return; // it was deleted while an answer was still coming
  const after = change(before);
  if (id === fresh.value.id && !after.messages.length) {
    fresh.value = after;
    return;
  }
  const isNew = !conversations.value.some((one) => one.id === id);
  const all = isNew ? [after, ...conversations.value] : conversations.value.map((one) => (one.id === id ? after : one));
  conversations.value = after.changedAt === before.changedAt ? all : all.sort((a, b) => b.changedAt - a.changedAt);
  if (isNew) startNew(id);
  write(id);
}

/** Open a conversation that exists. */
export function open(id: string): void {
  openId.value = id;
  history.replaceState(null, "", `#${id}`);
}

/** Open an empty conversation with the settings last used; `instead` opens that one and keeps the empty one ready. */
export function startNew(instead?: string): void {
  fresh.value = newConversation(rememberedDefaults.value);
  openId.value = instead ?? fresh.value.id;
  history.replaceState(null, "", instead ? `#${instead}` : location.pathname);
}

/** Remove a conversation; returns what brings it back. */
export function remove(id: string): () => void {
  const removed = find(id);
  conversations.value = conversations.value.filter((one) => one.id !== id);
  if (openId.value === id) startNew();
  unwritten.delete(id);
  if (isKeeping) database.erase(id).then(() => tellOthers(id), () => notify("It will be back after a reload."));
  return () => removed && add([removed]);
}

/** Take in conversations from elsewhere; the first is opened. */
export function add(given: Conversation[]): void {
  conversations.value = [...given, ...conversations.value].sort((a, b) => b.changedAt - a.changedAt);
  for (const one of given) write(one.id);
  if (given[0]) open(given[0].id);
}

/** Show what another tab has made of a conversation. */
async function takeOver(id: string): Promise<void> {
  const theirs = await database.read(id);
  if (!theirs && openId.value === id) startNew();
  const others = conversations.value.filter((one) => one.id !== id);
  conversations.value = theirs ? [...others, theirs].sort((a, b) => b.changedAt - a.changedAt) : others;
}

function withoutOpenAnswers(conversation: Conversation): Conversation {
  const messages = conversation.messages.map((message) =>
    message.state === "answering" ? { ...message, state: "lost" as const } : message,
  );
  return { ...conversation, messages };
}

function write(id: string): void {
  if (!isKeeping) return;
  unwritten.add(id);
  if (!resting.has(id)) writeNow(id);
}

function writeNow(id: string): void {
  clearTimeout(resting.get(id));
  resting.delete(id);
  const conversation = find(id);
  if (!unwritten.has(id) || !conversation) return;
  resting.set(id, window.setTimeout(() => writeNow(id), WRITE_EVERY_MS));
  database.write(conversation).then(
    () => {
      if (find(id) === conversation) unwritten.delete(id);
      tellOthers(id);
    },
    () => {
      unwritten.delete(id); // until it changes again
      notify("This conversation could not be saved.");
    },
  );
}

addEventListener("pagehide", () => leave([...unwritten].flatMap((id) => find(id) ?? [])));
addEventListener("pageshow", (event) => event.persisted && takeLeft()); // it is all here still
