import { branches, choosing, type Conversation, type Message } from "../model/conversation";
import { change } from "../model/library";
import { IconButton } from "./icon_button";

/** Arrows between the branches at this message; nothing if there is only one. */
export function BranchSwitch({ conversation, message }: { conversation: Conversation; message: Message }) {
  const all = branches(conversation, message.parent);
  if (all.length < 2) return null;
  const place = all.findIndex((one) => one.id === message.id);
  const show = (index: number) => change(conversation.id, (now) => choosing(now, all[index]!));
  return (
    <span class="branches" role="group" aria-label="Branches">
      <IconButton icon="left" label="Earlier branch" disabled={place === 0} onClick={() => show(place - 1)} />
      <span class="place">
        {place + 1}/{all.length}
      </span>
      <IconButton icon="right" label="Later branch" disabled={place === all.length - 1} onClick={() => show(place + 1)} />
    </span>
  );
}
