/** All conversations, and which one is open. Changes are saved as they are made. */

import { computed, signal } from "@preact/signals";

import { newConversation, type Conversation } from "./conversation";
import * as database from "./database";
import { saveUnsaved, takeUnsaved } from "./unsaved";
import { notify } from "./notices";
import { onChangeElsewhere, announceChange } from "./other_tabs";
import { rememberedDefaults } from "./preferences";

/** Minimum milliseconds between two writes of a conversation, for a growing answer. */
const WRITE_EVERY_MS = 150;

export const conversations = signal<Conversation[]>([]);
export const openId = signal("");

/** The open conversation; one without messages is neither listed nor saved. */
export const current = computed(() => conversations.value.find((one) => one.id === openId.value) ?? fresh.value);

const fresh = signal(newConversation());
let isPersistent = false;
const writeTimers = new Map<string, number>();
const unsaved = new Set<string>();

/** Load the saved conversations. An answer whose page was closed during generation is cut there. */
export async function loadLibrary(): Promise<void> {
  const wanted = location.hash.slice(1);
  try {
    await database.open();
    isPersistent = true;
    await Promise.all(takeUnsaved().map(database.write));
    const kept = await database.readAll();
    conversations.value = kept.map(withoutOpenAnswers).sort((a, b) => b.changedAt - a.changedAt);
  } catch {
    notify("Conversations cannot be kept in this browser window; they last until it is closed.");
  }
  if (find(wanted)) open(wanted);
  else startNew();
  onChangeElsewhere(loadFromOtherTab);
}

export function find(id: string): Conversation | undefined {
  return id === fresh.value.id ? fresh.value : conversations.value.find((one) => one.id === id);
}

/** Replace a conversation by what `change` makes of it. */
export function change(id: string, change: (conversation: Conversation) => Conversation): void {
  const before = find(id);
  if (!before) return; // deleted during generation
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

/** Remove a conversation; returns a function that restores it. */
export function remove(id: string): () => void {
  const removed = find(id);
  conversations.value = conversations.value.filter((one) => one.id !== id);
  if (openId.value === id) startNew();
  unsaved.delete(id);
  if (isPersistent) database.erase(id).then(() => announceChange(id), () => notify("It will be back after a reload."));
  return () => removed && add([removed]);
}

/** Add conversations, such as imported ones, and open the first. */
export function add(given: Conversation[]): void {
  conversations.value = [...given, ...conversations.value].sort((a, b) => b.changedAt - a.changedAt);
  for (const one of given) write(one.id);
  if (given[0]) open(given[0].id);
}

/** Load a conversation that another tab has changed or removed. */
async function loadFromOtherTab(id: string): Promise<void> {
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
  if (!isPersistent) return;
  unsaved.add(id);
  if (!writeTimers.has(id)) writeNow(id);
}

function writeNow(id: string): void {
  clearTimeout(writeTimers.get(id));
  writeTimers.delete(id);
  const conversation = find(id);
  if (!unsaved.has(id) || !conversation) return;
  writeTimers.set(id, window.setTimeout(() => writeNow(id), WRITE_EVERY_MS));
  database.write(conversation).then(
    () => {
      if (find(id) === conversation) unsaved.delete(id);
      announceChange(id);
    },
    () => {
      unsaved.delete(id); // until it changes again
      notify("This conversation could not be saved.");
    },
  );
}

addEventListener("pagehide", () => saveUnsaved([...unsaved].flatMap((id) => find(id) ?? [])));
addEventListener("pageshow", (event) => event.persisted && takeUnsaved()); // restored from the back/forward cache with its state
