/** Syntax highlighting. The highlighter is a separate bundle, fetched when the first code block is shown. */

import { signal } from "@preact/signals";

import { escaped } from "./escape";

type Highlight = (code: string, language: string) => string;

/** The highlighter, null until it is loaded; a component that reads it renders again then. */
export const highlighter = signal<Highlight | null>(null);

let isAsked = false;

/** Code as HTML, coloured if its language is known. */
export function highlighted(code: string, language: string): string {
  if (highlighter.value) return highlighter.value(code, language);
  if (!isAsked) {
    isAsked = true;
    void import("./languages").then((module) => (highlighter.value = module.highlight));
  }
  return escaped(code);
}
