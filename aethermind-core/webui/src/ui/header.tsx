import { modelOf } from "../model/generation";
import { models } from "../model/connection";
import type { Conversation } from "../model/conversation";
import { change } from "../model/library";
import { rememberedDefaults, theme, type Theme } from "../model/preferences";
import { IconButton } from "./icon_button";

interface Props {
  conversation: Conversation;
  onList: () => void;
  onSettings: () => void;
  onHelp: () => void;
}

/** The line above the conversation: its model, its settings, the page's theme. */
export function Header({ conversation, onList, onSettings, onHelp }: Props) {
  return (
    <header class="top">
      <IconButton class="only-narrow" icon="menu" label="Conversations" onClick={onList} />
      <ModelPicker conversation={conversation} />
      <span class="space" />
      <IconButton class="only-wide" icon="keyboard" label="Keyboard shortcuts" onClick={onHelp} />
      <ThemeButton />
      <IconButton icon="sliders" label="Settings" onClick={onSettings} />
    </header>
  );
}

function ModelPicker({ conversation }: { conversation: Conversation }) {
  const choose = (model: string) => {
    change(conversation.id, (now) => ({ ...now, model }));
    rememberedDefaults.value = { ...rememberedDefaults.value, model };
  };
  return (
    <select
      class="models"
      aria-label="Model"
      disabled={!models.value.length}
      value={modelOf(conversation)}
      onChange={(event) => choose(event.currentTarget.value)}
    >
      {models.value.length ? (
        models.value.map(({ id }) => (
          <option key={id} value={id}>
            {id.split("/").at(-1)}
          </option>
        ))
      ) : (
        <option value="">No model</option>
      )}
    </select>
  );
}

const NEXT: Record<Theme, Theme> = { system: "light", light: "dark", dark: "system" };

function ThemeButton() {
  const label = `Theme: ${theme.value}`;
  return <IconButton icon={theme.value} label={label} onClick={() => (theme.value = NEXT[theme.value])} />;
}
