/** Stores conversations in the browser's IndexedDB. */

import type { Conversation } from "./conversation";

const NAME = "aethermind";
const STORE = "conversations";

let opened: IDBDatabase | undefined;

/** Open the database; has to complete before any other function is called. */
export async function open(): Promise<void> {
  const request = indexedDB.open(NAME, 1);
  request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
  opened = await finished(request);
}

export function readAll(): Promise<Conversation[]> {
  return finished(store("readonly").getAll());
}

export function read(id: string): Promise<Conversation | undefined> {
  return finished(store("readonly").get(id));
}

/** The transaction starts before this returns, so that it is not lost when the page is closed. */
export function write(conversation: Conversation): Promise<unknown> {
  return finished(store("readwrite").put(conversation));
}

export function erase(id: string): Promise<unknown> {
  return finished(store("readwrite").delete(id));
}

function store(mode: IDBTransactionMode): IDBObjectStore {
  return opened!.transaction(STORE, mode).objectStore(STORE);
}

function finished<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
