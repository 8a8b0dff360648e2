/** Whether the server is there, and which models it has. */

import { signal } from "@preact/signals";

import { get, getJson, RefusedError } from "../api/http";
import type { Model } from "../api/types";

const CALM_MS = 15_000;
const EAGER_MS = 1_500;

export type Connection = { is: "unknown" | "ready" | "locked" | "unreachable" } | { is: "unready"; why: string };

/** `locked` is a server that is ready, but wants a key that the page does not have. */
export const connection = signal<Connection>({ is: "unknown" });
export const models = signal<Model[]>([]);

let timer = 0;

/** Look now, and from then on now and again: often while the server is away, so that its return is seen. */
export async function watchConnection(): Promise<void> {
  clearTimeout(timer);
  const was = connection.value.is;
  const now = await look();
  if (now.is !== "ready") connection.value = now;
  else if (was !== "ready" && was !== "locked") await loadModels();
  clearTimeout(timer);
  timer = window.setTimeout(watchConnection, now.is === "ready" ? CALM_MS : EAGER_MS);
}

/** Ask for the models. A 401 makes the page ask for the key. */
export async function loadModels(): Promise<void> {
  try {
    models.value = (await getJson<{ data: Model[] }>("/v1/models")).data;
    connection.value = { is: "ready" };
  } catch (error) {
    connection.value = unanswered(error);
  }
}

async function look(): Promise<Connection> {
  try {
    await get("/ready");
    return { is: "ready" };
  } catch (error) {
    return unanswered(error);
  }
}

function unanswered(error: unknown): Connection {
  if (!(error instanceof RefusedError)) return { is: "unreachable" };
  return error.status === 401 ? { is: "locked" } : { is: "unready", why: error.message };
}
