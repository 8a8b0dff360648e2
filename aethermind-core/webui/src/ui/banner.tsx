import { keyIsWanted } from "../model/api_key";
import { connection } from "../model/connection";

/** A line across the page while nothing can be asked. */
export function Banner() {
  const now = connection.value;
  if (now.is === "ready" || now.is === "unknown") return null;
  return (
    <div class="banner" role="status">
      {now.is === "unready" && `${now.why} Trying again…`}
      {now.is === "unreachable" && "The server cannot be reached. Trying again…"}
      {now.is === "locked" && (
        <>
          The server wants its API key.{" "}
          <button type="button" class="link" onClick={() => (keyIsWanted.value = true)}>
            Give it
          </button>
        </>
      )}
    </div>
  );
}
