import { sendMessage, modelOf } from "../model/generation";
import { models } from "../model/connection";
import { current } from "../model/library";

const IDEAS = ["Who are you?", "Tell me a short story.", "What can I ask you?"];

/** What an empty conversation shows. */
export function Welcome() {
  const model = models.value.find((one) => one.id === modelOf(current.value));
  return (
    <section class="welcome">
      <h1>What is on your mind?</h1>
      {model && (
        <p>
          You talk to <b>{model.id.split("/").at(-1)}</b>, which remembers {model.max_model_len.toLocaleString("en")} tokens.
          Conversations are kept in this browser only.
        </p>
      )}
      <ul>
        {IDEAS.map((idea) => (
          <li key={idea}>
            <button type="button" disabled={!model} onClick={() => sendMessage(current.value, idea, null)}>
              {idea}
            </button>
          </li>
        ))}
      </ul>
    </section>
  );
}
