/** Icons on a grid of 24 with one line width. They are hidden from screen readers; their buttons have labels. */

const PATHS = {
  plus: "M12 5v14M5 12h14",
  search: "M11 18a7 7 0 1 0 0-14 7 7 0 0 0 0 14ZM20 20l-4-4",
  more: "M5 12h.01M12 12h.01M19 12h.01",
  menu: "M4 7h16M4 12h16M4 17h10",
  close: "M6 6l12 12M18 6 6 18",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7.5 7.5h9v9h-9Z",
  copy: "M9 9h10v10H9ZM5 15V5h10",
  check: "M5 13l4.5 4.5L19 7",
  edit: "M4 20h4L19 9l-4-4L4 16ZM13 7l4 4",
  again: "M20 11a8 8 0 1 0-2.3 6.2M20 5v6h-6",
  onward: "M5 6l6 6-6 6M13 6l6 6-6 6",
  left: "M14 6l-6 6 6 6",
  right: "M10 6l6 6-6 6",
  down: "M12 5v14M6 13l6 6 6-6",
  sliders: "M4 8h9M19 8h1M4 16h1M11 16h9M16 10.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5ZM8 18.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5Z",
  light: "M12 16a4 4 0 1 0 0-8 4 4 0 0 0 0 8ZM12 3v1M12 20v1M3 12h1M20 12h1M5.6 5.6l.7.7M17.7 17.7l.7.7M5.6 18.4l.7-.7M17.7 6.3l.7-.7",
  dark: "M20 14.5A8.5 8.5 0 0 1 9.5 4 8.5 8.5 0 1 0 20 14.5Z",
  system: "M4 5h16v11H4ZM9 20h6",
  export: "M12 15V4M8 8l4-4 4 4M5 14v6h14v-6",
  import: "M12 4v11M8 11l4 4 4-4M5 14v6h14v-6",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  keyboard: "M3 7h18v10H3ZM7 11h.01M12 11h.01M17 11h.01M8 14h8",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} />
    </svg>
  );
}
