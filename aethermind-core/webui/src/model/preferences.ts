/** Preferences in localStorage: the theme, and the settings of new conversations. */

import { effect, signal } from "@preact/signals";

import type { Conversation } from "./conversation";

export type Theme = "system" | "light" | "dark";
type Defaults = Pick<Conversation, "system" | "sampling" | "model">;

export const theme = signal(remembered<Theme>("theme", "system"));
export const rememberedDefaults = signal(remembered<Defaults>("defaults", { system: "", sampling: {}, model: "" }));

effect(() => {
  remember("theme", theme.value);
  if (theme.value === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
});
effect(() => remember("defaults", rememberedDefaults.value));

function remembered<T>(name: string, otherwise: T): T {
  try {
    return (JSON.parse(localStorage.getItem(`aethermind.${name}`) ?? "null") as T | null) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function remember(name: string, value: unknown): void {
  try {
    localStorage.setItem(`aethermind.${name}`, JSON.stringify(value));
  } catch {
    // storage may be disabled, as in private windows
  }
}
