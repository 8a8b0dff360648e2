import { useEffect } from "preact/hooks";

import { startNew } from "../model/library";
import { Dialog } from "./dialog";

const MOD = /Mac|iPhone|iPad/.test(navigator.platform) ? "⌘" : "Ctrl";

const SHORTCUTS: [string, string][] = [
  ["Enter", "send"],
  ["Shift Enter", "new line"],
  ["Esc", "stop the answer"],
  [`${MOD} Shift O`, "new chat"],
  [`${MOD} K`, "search conversations"],
  [`${MOD} ,`, "settings"],
  ["/", "write a message"],
  ["?", "these shortcuts"],
];

export interface Actions {
  leave: () => unknown;
  search: () => void;
  openSettings: () => void;
  openHelp: () => void;
}

/** Keys that work everywhere on the page. */
export function useShortcuts(actions: Actions): void {
  useEffect(() => {
    const onKeyDown = (event: KeyboardEvent) => {
      if (event.defaultPrevented || document.querySelector("dialog[open]")) return;
      const act = actionOf(event, actions);
      if (act && act() !== false) event.preventDefault();
    };
    addEventListener("keydown", onKeyDown);
    return () => removeEventListener("keydown", onKeyDown);
  });
}

function actionOf(event: KeyboardEvent, actions: Actions): (() => unknown) | undefined {
  if (event.ctrlKey || event.metaKey) {
    if (event.shiftKey && event.key.toLowerCase() === "o") return () => [startNew(), focusComposer()];
    if (event.key === "k") return actions.search;
    if (event.key === ",") return actions.openSettings;
    return undefined;
  }
  if (event.key === "Escape") return actions.leave;
  const isWriting = (event.target as Element).closest("input, textarea, select");
  if (isWriting) return undefined;
  if (event.key === "/") return focusComposer;
  if (event.key === "?") return actions.openHelp;
  return undefined;
}

export function focusComposer(): void {
  document.getElementById("composer")?.focus();
}

export function ShortcutHelp({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keyboard" class="small" onClose={onClose}>
      <dl class="shortcuts">
        {SHORTCUTS.map(([keys, meaning]) => (
          <div key={keys}>
            <dt>
              {keys.split(" ").map((key) => (
                <kbd key={key}>{key}</kbd>
              ))}
            </dt>
            <dd>{meaning}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}
