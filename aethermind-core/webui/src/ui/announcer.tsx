import { useEffect, useRef, useState } from "preact/hooks";

import { path, type Conversation } from "../model/conversation";

/** Announces to screen readers that an answer is being generated, and then the whole answer once. */
export function Announcer({ conversation }: { conversation: Conversation }) {
  const last = path(conversation).at(-1);
  const wasAnswering = useRef(false);
  const [said, say] = useState("");
  const isAnswering = last?.state === "answering";
  useEffect(() => {
    if (isAnswering) say("The model is answering.");
    else if (wasAnswering.current && last) say(`The answer: ${last.content}`);
    wasAnswering.current = isAnswering;
  }, [isAnswering]);
  return (
    <div class="visually-hidden" role="status" aria-live="polite">
      {said}
    </div>
  );
}
