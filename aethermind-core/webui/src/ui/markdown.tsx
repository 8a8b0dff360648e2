/** An answer's text. Each block renders when its own text changes, so a long answer is cheap to update. */

import { memo } from "preact/compat";

import { copyText } from "../text/clipboard";
import { highlighter } from "../text/highlight";
import { blocks, html, type Block } from "../text/markdown";

export function Markdown({ text }: { text: string }) {
  const isColoured = highlighter.value !== null;
  return (
    <div class="markdown" onClick={copyCode}>
      {blocks(text).map((block, index) => (
        <Rendered key={index} block={block} isColoured={isColoured} />
      ))}
    </div>
  );
}

const Rendered = memo(
  ({ block }: { block: Block; isColoured: boolean }) => <div dangerouslySetInnerHTML={{ __html: html(block) }} />,
  (before, after) => before.block.raw === after.block.raw && before.isColoured === after.isColoured,
);

function copyCode(event: Event): void {
  const button = (event.target as Element).closest("button.copy");
  const code = button?.closest("figure")?.querySelector("code")?.textContent;
  if (!button || code == null) return;
  void copyText(code).then((isCopied) => {
    button.textContent = isCopied ? "Copied" : "Not copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
}
