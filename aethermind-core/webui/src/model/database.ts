/** Where conversations are kept between visits: the browser's IndexedDB. Nothing leaves this machine. */

import type { Conversation } from "./conversation";

const NAME = "aethermind";
const STORE = "conversations";

let opened: IDBDatabase | undefined;

/** Has to be called, and awaited, before anything else here. */
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

/** The request is made before this returns, so that it is in time even when the page is being left. */
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
