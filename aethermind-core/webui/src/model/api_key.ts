/** The server's API key. It is stored for this tab only, and sent to this server only. */

import { effect, signal } from "@preact/signals";

const STORAGE_KEY = "aethermind.api-key";

export const apiKey = signal(sessionStorage.getItem(STORAGE_KEY) ?? "");

/** Set by a 401; the page then asks for the key. */
export const isKeyRequired = signal(false);

effect(() => sessionStorage.setItem(STORAGE_KEY, apiKey.value));
