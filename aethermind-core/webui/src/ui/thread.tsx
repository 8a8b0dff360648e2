import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

import { path, type Conversation } from "../model/conversation";
import { AssistantMessage } from "./assistant_message";
import { IconButton } from "./icon_button";
import { UserMessage } from "./user_message";
import { Welcome } from "./welcome";

/** Within this distance from the end, the page scrolls along with a growing answer. */
const NEAR_PX = 80;

/** The messages of the open conversation. It scrolls along with a growing answer unless the user has scrolled up. */
export function Thread({ conversation, isBusy }: { conversation: Conversation; isBusy: boolean }) {
  const box = useRef<HTMLDivElement>(null);
  const [isAtEnd, setAtEnd] = useState(true);
  const shown = path(conversation);
  const last = shown.at(-1);
  const toEnd = () => box.current!.scrollTo({ top: box.current!.scrollHeight });
  useLayoutEffect(() => {
    if (isAtEnd) toEnd();
  }, [last?.content, last?.state]);
  useEffect(toEnd, [isBusy && last?.id]);
  const onScroll = () => {
    const { scrollHeight, scrollTop, clientHeight } = box.current!;
    setAtEnd(scrollHeight - scrollTop - clientHeight < NEAR_PX);
  };
  return (
    <div class="thread" ref={box} onScroll={onScroll} tabIndex={0} role="region" aria-label="Conversation">
      <div class="column">
        {shown.length === 0 && <Welcome />}
        {shown.map((message) =>
          message.role === "user" ? (
            <UserMessage key={message.id} conversation={conversation} message={message} />
          ) : (
            <AssistantMessage key={message.id} conversation={conversation} message={message} isBusy={isBusy} />
          ),
        )}
      </div>
      {!isAtEnd && <IconButton class="to-end" icon="down" label="To the end" onClick={toEnd} />}
    </div>
  );
}
