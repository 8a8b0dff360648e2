/** Where conversations are kept between visits: the browser's IndexedDB. Nothing leaves this machine. */

import type { Conversation } from "./conversation";

const NAME = "aethermind";
const STORE = "conversations";

let opened: Promise<IDBDatabase> | undefined;

export async function readAll(): Promise<Conversation[]> {
  return finished((await store("readonly")).getAll());
}

export async function write(conversation: Conversation): Promise<void> {
  await finished((await store("readwrite")).put(conversation));
}

export async function erase(id: string): Promise<void> {
  await finished((await store("readwrite")).delete(id));
}

async function store(mode: IDBTransactionMode): Promise<IDBObjectStore> {
  opened ??= open();
  return (await opened).transaction(STORE, mode).objectStore(STORE);
}

function open(): Promise<IDBDatabase> {
  const request = indexedDB.open(NAME, 1);
  request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
  return finished(request);
}

function finished<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
