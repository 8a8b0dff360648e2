import { continueAnswer, regenerate } from "../model/generation";
import type { Conversation, Message } from "../model/conversation";
import { BranchSwitch } from "./branch_switch";
import { CopyButton } from "./copy_button";
import { IconButton } from "./icon_button";
import { Markdown } from "./markdown";
import { StatsLine } from "./stats_line";

interface Props {
  conversation: Conversation;
  message: Message;
  isBusy: boolean;
}

/** An answer of the model, with its state and actions. */
export function AssistantMessage({ conversation, message, isBusy }: Props) {
  const isAnswering = message.state === "answering";
  return (
    <article class="message assistant" aria-label={message.model ?? "Model"} aria-busy={isAnswering}>
      {message.reasoning && <Reasoning text={message.reasoning} />}
      {message.content ? <Markdown text={message.content} /> : isAnswering && <Waiting />}
      <Ending conversation={conversation} message={message} isBusy={isBusy} />
      {!isAnswering && (
        <div class="actions">
          <BranchSwitch conversation={conversation} message={message} />
          {message.content && <CopyButton text={message.content} />}
          <IconButton icon="again" label="Regenerate" disabled={isBusy} onClick={() => regenerate(conversation, message)} />
          {message.stats && <StatsLine stats={message.stats} />}
        </div>
      )}
    </article>
  );
}

function Reasoning({ text }: { text: string }) {
  return (
    <details class="reasoning">
      <summary>Thoughts</summary>
      <div>{text}</div>
    </details>
  );
}

function Waiting() {
  return (
    <p class="waiting" aria-hidden="true">
      <span />
      <span />
      <span />
    </p>
  );
}

const ENDINGS = {
  stopped: "Stopped.",
  cut: "Cut at the most tokens allowed.",
  lost: "The connection was lost before the end.",
  failed: "",
};

function Ending({ conversation, message, isBusy }: Props) {
  if (message.state === "done" || message.state === "answering") return null;
  const isError = message.state === "failed" || message.state === "lost";
  const said = message.state === "failed" ? message.error : ENDINGS[message.state];
  return (
    <div class={isError ? "ending error" : "ending"} role={isError ? "alert" : undefined}>
      <span>{said}</span>
      {message.content ? (
        <button type="button" class="link" disabled={isBusy} onClick={() => continueAnswer(conversation, message)}>
          Continue
        </button>
      ) : (
        <button type="button" class="link" disabled={isBusy} onClick={() => regenerate(conversation, message)}>
          Try again
        </button>
      )}
    </div>
  );
}
