import { useState } from "preact/hooks";

import { copyText } from "../text/clipboard";
import { IconButton } from "./icon_button";

/** A button that copies a text and briefly confirms it. */
export function CopyButton({ text }: { text: string }) {
  const [isCopied, setCopied] = useState(false);
  const copy = async () => {
    setCopied(await copyText(text));
    setTimeout(() => setCopied(false), 1500);
  };
  return <IconButton icon={isCopied ? "check" : "copy"} label={isCopied ? "Copied" : "Copy"} onClick={copy} />;
}
