/** A model's markdown as safe HTML, block by block, so that a growing answer renders its last block only. */

import DOMPurify from "dompurify";
import { Lexer, Parser, Renderer, type Token, type Tokens } from "marked";

import { escaped } from "./escape";
import { highlighted } from "./highlight";

const renderer = new Renderer();

// HTML in an answer is shown as text, and images become links, so that an answer cannot load anything.
renderer.html = ({ text }: Tokens.HTML | Tokens.Tag) => escaped(text);
renderer.image = ({ href, text }: Tokens.Image) => `<a href="${escaped(href)}">${escaped(text || href)}</a>`;
renderer.code = ({ text, lang }: Tokens.Code) => {
  const language = lang?.match(/^[\w+#.-]+/)?.[0] ?? "";
  return (
    `<figure class="code"><figcaption><span>${escaped(language || "text")}</span>` +
    `<button type="button" class="copy">Copy</button></figcaption>` +
    `<pre tabindex="0"><code>${highlighted(text, language)}</code></pre></figure>`
  );
};
renderer.table = function (token: Tokens.Table) {
  return `<div class="table" tabindex="0">${Renderer.prototype.table.call(this, token)}</div>`;
};

const ALLOWED = {
  ALLOWED_TAGS: [
    ..."a b blockquote br button code del div em figcaption figure h1 h2 h3 h4 h5 h6 hr i input li ol p pre".split(" "),
    ..."span strong sub sup table tbody td th thead tr ul".split(" "),
  ],
  ALLOWED_ATTR: ["align", "checked", "class", "disabled", "href", "rel", "start", "tabindex", "target", "type"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ADD_URI_SAFE_ATTR: ["align", "checked", "disabled", "start", "tabindex", "type"], // these hold no addresses
};

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.nodeName !== "A") return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer");
});

export interface Block {
  raw: string;
  token: Token;
}

/** The top-level blocks of a text. Links defined anywhere in it are resolved. */
export function blocks(text: string): Block[] {
  return new Lexer({ gfm: true, breaks: true })
    .lex(text)
    .filter((token) => token.type !== "space" && token.type !== "def")
    .map((token) => ({ raw: token.raw, token }));
}

/** A block's HTML, sanitised as the last step. */
export function html(block: Block): string {
  const rendered = Parser.parse([block.token], { gfm: true, breaks: true, renderer });
  return DOMPurify.sanitize(rendered, { ...ALLOWED, RETURN_TRUSTED_TYPE: true }) as unknown as string;
}
