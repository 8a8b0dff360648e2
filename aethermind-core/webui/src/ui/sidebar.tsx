import { useRef, useState } from "preact/hooks";

import type { Conversation } from "../model/conversation";
import { download, parse } from "../model/conversation_file";
import { add, conversations, current, open, startNew } from "../model/library";
import { notify } from "../model/notices";
import { ConversationRow } from "./conversation_row";
import { IconButton } from "./icon_button";
import { Icon } from "./icons";

/** The list of conversations. On a narrow screen it slides in, and `onLeave` closes it after a choice. */
export function Sidebar({ onLeave }: { onLeave: () => void }) {
  const [wanted, setWanted] = useState("");
  const found = conversations.value.filter((one) => matches(one, wanted.trim().toLowerCase()));
  const leaveTo = (act: () => void) => () => {
    act();
    onLeave();
  };
  return (
    <>
      <div class="brand">
        <span class="name">AetherMind</span>
        <IconButton class="only-narrow" icon="close" label="Close the list" onClick={onLeave} />
      </div>
      <button type="button" id="new-chat" class="new" onClick={leaveTo(startNew)}>
        <Icon name="plus" /> New chat
      </button>
      <label class="search">
        <Icon name="search" />
        <input
          id="search"
          type="search"
          placeholder="Search"
          aria-label="Search conversations"
          value={wanted}
          onInput={(event) => setWanted(event.currentTarget.value)}
        />
      </label>
      <nav aria-label="Conversations">
        <ul>
          {found.map((one) => (
            <ConversationRow
              key={one.id}
              conversation={one}
              isOpen={one.id === current.value.id}
              onOpen={leaveTo(() => open(one.id))}
            />
          ))}
        </ul>
        {!found.length && <p class="nothing">{wanted ? "Nothing found." : "Conversations appear here."}</p>}
      </nav>
      <Files />
    </>
  );
}

function Files() {
  const picker = useRef<HTMLInputElement>(null);
  const take = async (file: File | undefined) => {
    if (!file) return;
    try {
      const given = parse(await file.text());
      add(given);
      notify(given.length === 1 ? "One conversation was imported." : `${given.length} conversations were imported.`);
    } catch (error) {
      notify((error as Error).message);
    }
    picker.current!.value = "";
  };
  return (
    <div class="files">
      <input
        ref={picker}
        type="file"
        accept="application/json,.json"
        class="visually-hidden"
        tabIndex={-1}
        aria-label="File with conversations"
        onChange={(event) => take(event.currentTarget.files?.[0])}
      />
      <button type="button" class="quiet" onClick={() => picker.current!.click()}>
        <Icon name="import" /> Import
      </button>
      <button
        type="button"
        class="quiet"
        disabled={!conversations.value.length}
        onClick={() => download(conversations.value, "aethermind-chats")}
      >
        <Icon name="export" /> Export all
      </button>
    </div>
  );
}

function matches(conversation: Conversation, wanted: string): boolean {
  const has = (text: string) => text.toLowerCase().includes(wanted);
  return has(conversation.title) || conversation.messages.some((message) => has(message.content));
}
