import { useEffect, useState } from "preact/hooks";

import { modelOf, sendMessage, stop } from "../model/generation";
import { connection } from "../model/connection";
import { path, type Conversation } from "../model/conversation";
import { IconButton } from "./icon_button";
import { TextArea } from "./text_area";

const drafts = new Map<string, string>();

/** The input field. Each conversation keeps its own draft. */
export function Composer({ conversation, isBusy }: { conversation: Conversation; isBusy: boolean }) {
  const [text, setText] = useState(drafts.get(conversation.id) ?? "");
  useEffect(() => {
    document.getElementById("composer")?.focus();
  }, []);
  const canSend = text.trim() !== "" && !isBusy && connection.value.is === "ready" && modelOf(conversation) !== "";
  const write = (next: string) => {
    drafts.set(conversation.id, next);
    setText(next);
  };
  const send = () => {
    if (!canSend) return;
    write("");
    sendMessage(conversation, text, path(conversation).at(-1)?.id ?? null);
  };
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <TextArea id="composer" label="Message" placeholder="Write a message" value={text} onInput={write} onSubmit={send} />
      {isBusy ? (
        <IconButton class="send" icon="stop" label="Stop" onClick={() => stop(conversation)} />
      ) : (
        <IconButton class="send" icon="send" label="Send" disabled={!canSend} onClick={send} />
      )}
    </form>
  );
}
