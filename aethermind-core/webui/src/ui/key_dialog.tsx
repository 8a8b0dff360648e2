import { useState } from "preact/hooks";

import { apiKey, isKeyRequired } from "../model/api_key";
import { connection, loadModels } from "../model/connection";
import { Dialog } from "./dialog";

/** Asks for the API key until the server takes it. */
export function KeyDialog() {
  const [key, setKey] = useState("");
  const [isWrong, setWrong] = useState(apiKey.value !== "");
  const send = async () => {
    apiKey.value = key.trim();
    isKeyRequired.value = false;
    await loadModels();
    setWrong(connection.value.is === "locked");
  };
  return (
    <Dialog title="API key" class="small" onClose={() => (isKeyRequired.value = false)}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void send();
        }}
      >
        <p>This server answers only to those who know its key. It is kept until this tab is closed.</p>
        <label class="field">
          <span>Key</span>
          <input
            type="password"
            autoComplete="off"
            required
            autoFocus
            aria-invalid={isWrong}
            value={key}
            onInput={(event) => setKey(event.currentTarget.value)}
          />
        </label>
        {isWrong && (
          <p class="error" role="alert">
            The server does not know this key.
          </p>
        )}
        <button type="submit" class="primary">
          Continue
        </button>
      </form>
    </Dialog>
  );
}
