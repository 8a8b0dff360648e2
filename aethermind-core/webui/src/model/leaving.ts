/** What was not safely written when the page was left. IndexedDB may lose that; localStorage is written at once. */

import type { Conversation } from "./conversation";

const PLACE = "aethermind.left";

export function leave(conversations: Conversation[]): void {
  if (!conversations.length) return;
  try {
    localStorage.setItem(PLACE, JSON.stringify([...left(), ...conversations]));
  } catch {
    // too much for localStorage: IndexedDB has most of it
  }
}

/** What was left, the last version of each conversation; it is handed out once. */
export function takeLeft(): Conversation[] {
  const all = new Map(left().map((one) => [one.id, one]));
  localStorage.removeItem(PLACE);
  return [...all.values()];
}

function left(): Conversation[] {
  try {
    return JSON.parse(localStorage.getItem(PLACE) ?? "[]") as Conversation[];
  } catch {
    return [];
  }
}
