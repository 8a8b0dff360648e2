/** The key that the server wants, if it wants one. It lives as long as the tab, and is sent to nobody else. */

import { effect, signal } from "@preact/signals";

const PLACE = "aethermind.api-key";

export const apiKey = signal(sessionStorage.getItem(PLACE) ?? "");

/** Set by a 401; the page then asks for the key. */
export const keyIsWanted = signal(false);

effect(() => sessionStorage.setItem(PLACE, apiKey.value));
