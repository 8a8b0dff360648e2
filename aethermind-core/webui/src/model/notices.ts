/** Notices at the foot of the page, which disappear after SHOWN_MS. */

import { signal } from "@preact/signals";

const SHOWN_MS = 7_000;

export interface Notice {
  text: string;
  undo?: () => void;
}

export const notice = signal<Notice | null>(null);

let timer = 0;

export function notify(text: string, undo?: () => void): void {
  clearTimeout(timer);
  notice.value = undo ? { text, undo } : { text };
  timer = window.setTimeout(dismiss, SHOWN_MS);
}

export function dismiss(): void {
  notice.value = null;
}
