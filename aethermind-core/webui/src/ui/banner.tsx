import { isKeyRequired } from "../model/api_key";
import { connection } from "../model/connection";

/** A banner while the server is not ready. */
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
          <button type="button" class="link" onClick={() => (isKeyRequired.value = true)}>
            Give it
          </button>
        </>
      )}
    </div>
  );
}
