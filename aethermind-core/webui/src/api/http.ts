/** HTTP requests to this page's server, with the API key. Paths are relative to the page. */

import { apiKey, isKeyRequired } from "../model/api_key";

/** An error status of the server; `message` is the server's. */
export class HttpError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

/** A request without a response. */
export class UnreachableError extends Error {
  constructor() {
    super("The server cannot be reached.");
  }
}

/** Whether an AbortController cancelled the request. */
export function wasAborted(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}

export function get(url: string): Promise<Response> {
  return send(url, { method: "GET" });
}

export async function getJson<T>(url: string): Promise<T> {
  return (await get(url)).json() as Promise<T>;
}

export async function postJson<T>(url: string, body: unknown, signal: AbortSignal): Promise<T> {
  return (await post(url, body, signal)).json() as Promise<T>;
}

export function post(url: string, body: unknown, signal: AbortSignal): Promise<Response> {
  return send(url, { method: "POST", body: JSON.stringify(body), signal });
}

async function send(url: string, init: RequestInit): Promise<Response> {
  const headers = new Headers({ "Content-Type": "application/json" });
  if (apiKey.value) headers.set("Authorization", `Bearer ${apiKey.value}`);
  let response: Response;
  try {
    response = await fetch(`.${url}`, { ...init, headers, cache: "no-store" });
  } catch (error) {
    if (wasAborted(error)) throw error;
    throw new UnreachableError();
  }
  if (response.ok) return response;
  if (response.status === 401) isKeyRequired.value = true;
  throw new HttpError(response.status, await refusal(response));
}

async function refusal(response: Response): Promise<string> {
  try {
    return ((await response.json()) as { error: { message: string } }).error.message;
  } catch {
    return `The server answered ${response.status} ${response.statusText}.`;
  }
}
