import { useState } from "preact/hooks";

import { editMessage } from "../model/generation";
import type { Conversation, Message } from "../model/conversation";
import { BranchSwitch } from "./branch_switch";
import { CopyButton } from "./copy_button";
import { IconButton } from "./icon_button";
import { focusComposer } from "./shortcuts";
import { TextArea } from "./text_area";

/** A message of the user. Editing it adds a branch. */
export function UserMessage({ conversation, message }: { conversation: Conversation; message: Message }) {
  const [isEditing, setEditing] = useState(false);
  if (isEditing) {
    const close = () => {
      setEditing(false);
      focusComposer();
    };
    return <Editor conversation={conversation} message={message} onClose={close} />;
  }
  return (
    <article class="message user" aria-label="You">
      <div class="bubble">{message.content}</div>
      <div class="actions">
        <BranchSwitch conversation={conversation} message={message} />
        <CopyButton text={message.content} />
        <IconButton icon="edit" label="Edit" onClick={() => setEditing(true)} />
      </div>
    </article>
  );
}

function Editor({ conversation, message, onClose }: { conversation: Conversation; message: Message; onClose: () => void }) {
  const [text, setText] = useState(message.content);
  const send = () => {
    if (!text.trim()) return;
    editMessage(conversation, message, text);
    onClose();
  };
  const onEscape = (event: KeyboardEvent) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    onClose();
  };
  return (
    <article class="message user editing" aria-label="You, editing" onKeyDown={onEscape}>
      <TextArea label="Edit message" value={text} onInput={setText} onSubmit={send} isFocused />
      <div class="actions">
        <button type="button" class="quiet" onClick={onClose}>
          Cancel
        </button>
        <button type="button" class="primary" disabled={!text.trim()} onClick={send}>
          Send
        </button>
      </div>
    </article>
  );
}
