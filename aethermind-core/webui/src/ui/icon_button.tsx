import { Icon, type IconName } from "./icons";

interface Props {
  icon: IconName;
  label: string;
  onClick: () => void;
  disabled?: boolean;
  class?: string;
}

/** A button with an icon, and a label for screen readers. */
export function IconButton({ icon, label, onClick, disabled = false, class: extra = "" }: Props) {
  return (
    <button type="button" class={`icon-button ${extra}`} aria-label={label} title={label} disabled={disabled} onClick={onClick}>
      <Icon name={icon} />
    </button>
  );
}
