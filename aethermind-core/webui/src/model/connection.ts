/** Polls whether the server is ready, and lists its models. */

import { signal } from "@preact/signals";

import { get, getJson, HttpError } from "../api/http";
import type { Model } from "../api/types";

const POLL_READY_MS = 15_000;
const POLL_UNREADY_MS = 1_500;

export type Connection = { is: "unknown" | "ready" | "locked" | "unreachable" } | { is: "unready"; why: string };

/** `locked` is a server that is ready but requires a key that the page does not have. */
export const connection = signal<Connection>({ is: "unknown" });
export const models = signal<Model[]>([]);

let timer = 0;

/** Probe the server now and then periodically, more often while it is not ready. */
export async function watchConnection(): Promise<void> {
  clearTimeout(timer);
  const was = connection.value.is;
  const now = await probe();
  if (now.is !== "ready") connection.value = now;
  else if (was !== "ready" && was !== "locked") await loadModels();
  clearTimeout(timer);
  timer = window.setTimeout(watchConnection, now.is === "ready" ? POLL_READY_MS : POLL_UNREADY_MS);
}

/** List the models. A 401 opens the dialog for the API key. */
export async function loadModels(): Promise<void> {
  try {
    models.value = (await getJson<{ data: Model[] }>("/v1/models")).data;
    connection.value = { is: "ready" };
  } catch (error) {
    connection.value = connectionAfter(error);
  }
}

async function probe(): Promise<Connection> {
  try {
    await get("/ready");
    return { is: "ready" };
  } catch (error) {
    return connectionAfter(error);
  }
}

function connectionAfter(error: unknown): Connection {
  if (!(error instanceof HttpError)) return { is: "unreachable" };
  return error.status === 401 ? { is: "locked" } : { is: "unready", why: error.message };
}
