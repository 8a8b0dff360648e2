/** Whether the server is there, and which models it has. */

import { signal } from "@preact/signals";

import { getJson, UnreachableError } from "../api/http";
import type { Model } from "../api/types";

const CALM_MS = 15_000;
const EAGER_MS = 1_500;

export type Connection = { is: "unknown" | "ready" | "unreachable" } | { is: "unready"; why: string };

export const connection = signal<Connection>({ is: "unknown" });
export const models = signal<Model[]>([]);

let timer = 0;

/** Look now, and from then on now and again: often while the server is away, so that its return is seen. */
export async function watchConnection(): Promise<void> {
  clearTimeout(timer);
  const was = connection.value.is;
  connection.value = await look();
  if (connection.value.is === "ready" && (was !== "ready" || !models.value.length)) await loadModels();
  clearTimeout(timer);
  timer = window.setTimeout(watchConnection, connection.value.is === "ready" ? CALM_MS : EAGER_MS);
}

/** Ask for the models; a 401 makes the page ask for the key, and changes nothing. */
export async function loadModels(): Promise<void> {
  try {
    models.value = (await getJson<{ data: Model[] }>("/v1/models")).data;
  } catch (error) {
    if (error instanceof UnreachableError) connection.value = { is: "unreachable" };
  }
}

async function look(): Promise<Connection> {
  try {
    const response = await fetch("/ready", { cache: "no-store" });
    if (response.ok) return { is: "ready" };
    const body = (await response.json()) as { error?: { message?: string } };
    return { is: "unready", why: body.error?.message ?? "The server is not ready." };
  } catch {
    return { is: "unreachable" };
  }
}
