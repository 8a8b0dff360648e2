import { useEffect, useState } from "preact/hooks";

import { isKeyRequired } from "./model/api_key";
import { answering, stopCurrentAnswer } from "./model/generation";
import { current } from "./model/library";
import { Announcer } from "./ui/announcer";
import { Banner } from "./ui/banner";
import { Composer } from "./ui/composer";
import { Header } from "./ui/header";
import { KeyDialog } from "./ui/key_dialog";
import { Settings } from "./ui/settings";
import { focusComposer, ShortcutHelp, useShortcuts } from "./ui/shortcuts";
import { Sidebar } from "./ui/sidebar";
import { Thread } from "./ui/thread";
import { Toast } from "./ui/toast";

type Opened = "settings" | "help" | null;

/** Whether the list covers the conversation; layout.css has the same width. */
const isNarrow = () => matchMedia("(max-width: 52rem)").matches;

/** The page: the list of conversations, the open one, and dialogs. */
export function App() {
  const [opened, setOpened] = useState<Opened>(null);
  const [hasList, setList] = useState(false);
  const conversation = current.value;
  const isBusy = answering.value.has(conversation.id);
  useEffect(() => {
    document.title = conversation.messages.length ? `${conversation.title} · AetherMind` : "AetherMind";
  }, [conversation.title, conversation.id]);
  const close = () => setOpened(null);
  const openList = (focused: string) => {
    setList(true);
    setTimeout(() => document.getElementById(focused)?.focus());
  };
  const leaveList = () => {
    setList(false);
    setTimeout(focusComposer);
  };
  useShortcuts({
    search: () => openList("search"),
    leave: () => (hasList ? leaveList() : stopCurrentAnswer()),
    openSettings: () => setOpened("settings"),
    openHelp: () => setOpened("help"),
  });
  return (
    <div class={hasList ? "page has-list" : "page"}>
      <aside class="sidebar" aria-label="List of conversations">
        <Sidebar onLeave={leaveList} />
      </aside>
      <div class="veil" onClick={leaveList} />
      <main inert={hasList && isNarrow()}>
        <Header
          conversation={conversation}
          onList={() => openList("new-chat")}
          onSettings={() => setOpened("settings")}
          onHelp={() => setOpened("help")}
        />
        <Banner />
        <Thread key={conversation.id} conversation={conversation} isBusy={isBusy} />
        <Composer key={conversation.id} conversation={conversation} isBusy={isBusy} />
      </main>
      {opened === "settings" && <Settings conversation={conversation} onClose={close} />}
      {opened === "help" && <ShortcutHelp onClose={close} />}
      {isKeyRequired.value && <KeyDialog />}
      <Announcer key={`announcer ${conversation.id}`} conversation={conversation} />
      <Toast />
    </div>
  );
}
