/** Other tabs with this page: each tells the others which conversation it has changed. */

const channel = new BroadcastChannel("aethermind.conversations");

export function tellOthers(id: string): void {
  channel.postMessage(id);
}

export function onChangeElsewhere(take: (id: string) => void): void {
  channel.onmessage = (event: MessageEvent<string>) => take(event.data);
}
