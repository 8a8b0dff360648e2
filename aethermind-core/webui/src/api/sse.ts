/** Server-sent events (WHATWG HTML, 9.2), the subset that OpenAI's API uses: `data:` lines and comments. */

import { UnreachableError, wasAborted } from "./http";

/** The data of each event, up to `[DONE]`. UnreachableError if the stream ends without it. */
export async function* eventsOf(response: Response): AsyncGenerator<string> {
  let rest = "";
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new UnreachableError();
      const lines = (rest + value).split("\n");
      rest = lines.pop()!;
      for (const line of lines) {
        if (!line.startsWith("data:")) continue;
        const data = line.slice(5).trim();
        if (data === "[DONE]") return;
        yield data;
      }
    }
  } catch (error) {
    throw wasAborted(error) || error instanceof UnreachableError ? error : new UnreachableError();
  } finally {
    reader.cancel().catch(() => undefined);
  }
}
