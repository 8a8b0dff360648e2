import { useEffect, useRef, useState } from "preact/hooks";

import { IconButton } from "./icon_button";
import { Icon, type IconName } from "./icons";

interface Item {
  icon: IconName;
  label: string;
  act: () => void;
}

/** A button that opens a short list of actions. Arrows walk through them; Escape and a click elsewhere close it. */
export function Menu({ label, items }: { label: string; items: Item[] }) {
  const [isOpen, setOpen] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  const buttons = () => [...box.current!.querySelectorAll<HTMLButtonElement>("[role=menuitem]")];
  const close = () => {
    setOpen(false);
    box.current?.querySelector<HTMLButtonElement>(".icon-button")?.focus();
  };
  useEffect(() => {
    if (!isOpen) return;
    buttons()[0]?.focus();
    const onPointer = (event: Event) => !box.current!.contains(event.target as Node) && setOpen(false);
    addEventListener("pointerdown", onPointer);
    return () => removeEventListener("pointerdown", onPointer);
  }, [isOpen]);
  const onKeyDown = (event: KeyboardEvent) => {
    if (!isOpen) return;
    if (event.key === "Tab") setOpen(false);
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step && event.key !== "Escape") return;
    event.preventDefault();
    event.stopPropagation();
    if (!step) return close();
    const all = buttons();
    const place = all.indexOf(document.activeElement as HTMLButtonElement);
    all[(place + step + all.length) % all.length]!.focus();
  };
  return (
    <div class={isOpen ? "menu open" : "menu"} ref={box} onKeyDown={onKeyDown}>
      <IconButton icon="more" label={label} onClick={() => setOpen(!isOpen)} />
      {isOpen && (
        <ul role="menu" aria-label={label}>
          {items.map(({ icon, label, act }) => (
            <li key={label} role="none">
              <button
                type="button"
                role="menuitem"
                onClick={() => {
                  close();
                  act();
                }}
              >
                <Icon name={icon} /> {label}
              </button>
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}
