import { useState } from "preact/hooks";

import { keyIsWanted } from "./model/api_key";
import { answering } from "./model/asking";
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

/** The page: the list of conversations, the open one, and what lies over them. */
export function App() {
  const [opened, setOpened] = useState<Opened>(null);
  const [hasList, setList] = useState(false);
  const conversation = current.value;
  const isBusy = answering.value.has(conversation.id);
  const close = () => setOpened(null);
  const leaveList = () => {
    setList(false);
    focusComposer();
  };
  useShortcuts({
    search: () => {
      setList(true);
      setTimeout(() => document.getElementById("search")?.focus());
    },
    openSettings: () => setOpened("settings"),
    openHelp: () => setOpened("help"),
  });
  return (
    <div class={hasList ? "page has-list" : "page"}>
      <aside class="sidebar" aria-label="List of conversations">
        <Sidebar onLeave={leaveList} />
      </aside>
      <div class="veil" onClick={leaveList} />
      <main>
        <Header
          conversation={conversation}
          onList={() => setList(true)}
          onSettings={() => setOpened("settings")}
          onHelp={() => setOpened("help")}
        />
        <Banner />
        <Thread key={conversation.id} conversation={conversation} isBusy={isBusy} />
        <Composer key={conversation.id} conversation={conversation} isBusy={isBusy} />
      </main>
      {opened === "settings" && <Settings conversation={conversation} onClose={close} />}
      {opened === "help" && <ShortcutHelp onClose={close} />}
      {keyIsWanted.value && <KeyDialog />}
      <Announcer key={`announcer ${conversation.id}`} conversation={conversation} />
      <Toast />
    </div>
  );
}
