import { useRef, useState } from "preact/hooks";

import { answering, stop } from "../model/generation";
import type { Conversation } from "../model/conversation";
import { download } from "../model/conversation_file";
import { change, remove } from "../model/library";
import { notify } from "../model/notices";
import { Menu } from "./menu";

interface Props {
  conversation: Conversation;
  isOpen: boolean;
  onOpen: () => void;
}

/** One conversation in the list, with its actions. */
export function ConversationRow({ conversation, isOpen, onOpen }: Props) {
  const [isRenaming, setRenaming] = useState(false);
  if (isRenaming) return <Renaming conversation={conversation} onClose={() => setRenaming(false)} />;
  const discard = () => {
    stop(conversation);
    notify(`“${conversation.title}” was deleted.`, remove(conversation.id));
  };
  return (
    <li class={isOpen ? "row open" : "row"}>
      <button type="button" class="title" aria-current={isOpen ? "page" : undefined} onClick={onOpen}>
        {conversation.title}
        {answering.value.has(conversation.id) && <span class="pulse" role="img" aria-label="answering" />}
      </button>
      <Menu
        label={`More about ${conversation.title}`}
        items={[
          { icon: "edit", label: "Rename", act: () => setRenaming(true) },
          { icon: "export", label: "Export", act: () => download([conversation], conversation.title) },
          { icon: "trash", label: "Delete", act: discard },
        ]}
      />
    </li>
  );
}

function Renaming({ conversation, onClose }: { conversation: Conversation; onClose: () => void }) {
  const [title, setTitle] = useState(conversation.title);
  const isOver = useRef(false); // leaving the field saves, but not when it is left because of Escape
  const close = () => {
    isOver.current = true;
    onClose();
  };
  const save = () => {
    if (isOver.current) return;
    if (title.trim()) change(conversation.id, (now) => ({ ...now, title: title.trim(), isNamed: true }));
    close();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Enter") save();
    if (event.key === "Escape") {
      event.stopPropagation();
      close();
    }
  };
  return (
    <li class="row">
      <input
        class="rename"
        aria-label="Title"
        value={title}
        ref={(input) => input?.focus()}
        onInput={(event) => setTitle(event.currentTarget.value)}
        onKeyDown={onKeyDown}
        onBlur={save}
      />
    </li>
  );
}
