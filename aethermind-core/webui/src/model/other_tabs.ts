/** Synchronises tabs: each broadcasts the id of a conversation that it has changed. */

const channel = new BroadcastChannel("aethermind.conversations");

export function announceChange(id: string): void {
  channel.postMessage(id);
}

export function onChangeElsewhere(take: (id: string) => void): void {
  channel.onmessage = (event: MessageEvent<string>) => take(event.data);
}
