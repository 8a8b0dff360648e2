/** Unsaved conversations when the page is closed: IndexedDB may lose them, localStorage is written synchronously. */

import type { Conversation } from "./conversation";

const STORAGE_KEY = "aethermind.left";

export function saveUnsaved(conversations: Conversation[]): void {
  if (!conversations.length) return;
  try {
    localStorage.setItem(STORAGE_KEY, JSON.stringify([...unsavedConversations(), ...conversations]));
  } catch {
    // too much for localStorage: IndexedDB has most of it
  }
}

/** Remove and return the unsaved conversations, the last version of each. */
export function takeUnsaved(): Conversation[] {
  const all = new Map(unsavedConversations().map((conversation) => [conversation.id, conversation]));
  localStorage.removeItem(STORAGE_KEY);
  return [...all.values()];
}

function unsavedConversations(): Conversation[] {
  try {
    return JSON.parse(localStorage.getItem(STORAGE_KEY) ?? "[]") as Conversation[];
  } catch {
    return [];
  }
}
