import { useLayoutEffect, useRef } from "preact/hooks";

interface Props {
  label: string;
  value: string;
  onInput: (text: string) => void;
  onSubmit: () => void;
  placeholder?: string;
  isFocused?: boolean;
  id?: string;
}

/** A field that grows with its text. Enter submits, Shift+Enter and a phone's Enter begin a new line. */
export function TextArea({ label, value, onInput, onSubmit, placeholder, isFocused = false, id }: Props) {
  const field = useRef<HTMLTextAreaElement>(null);
  useLayoutEffect(() => {
    const area = field.current!;
    area.style.height = "auto";
    area.style.height = `${area.scrollHeight}px`;
  }, [value]);
  useLayoutEffect(() => {
    if (!isFocused) return;
    field.current!.focus();
    field.current!.setSelectionRange(value.length, value.length);
  }, []);
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || isTouch()) return;
    event.preventDefault();
    onSubmit();
  };
  return (
    <textarea
      ref={field}
      {...(id ? { id } : {})}
      rows={1}
      aria-label={label}
      placeholder={placeholder ?? ""}
      value={value}
      onInput={(event) => onInput(event.currentTarget.value)}
      onKeyDown={onKeyDown}
    />
  );
}

function isTouch(): boolean {
  return matchMedia("(pointer: coarse)").matches;
}
