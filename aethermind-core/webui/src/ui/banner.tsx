import { keyIsWanted } from "../model/api_key";
import { connection, models } from "../model/connection";

/** A line across the page while nothing can be asked. */
export function Banner() {
  const now = connection.value;
  if (now.is === "ready" && !models.value.length) {
    return (
      <div class="banner" role="status">
        The server wants its API key.{" "}
        <button type="button" class="link" onClick={() => (keyIsWanted.value = true)}>
          Give it
        </button>
      </div>
    );
  }
  if (now.is === "ready" || now.is === "unknown") return null;
  const said = now.is === "unready" ? now.why : "The server cannot be reached.";
  return (
    <div class="banner" role="status">
      {said} Trying again…
    </div>
  );
}
