import type { SamplingSettings } from "../api/types";
import type { Conversation } from "../model/conversation";
import { change } from "../model/library";
import { rememberedDefaults } from "../model/preferences";
import { Dialog } from "./dialog";

interface NumberSetting {
  name: Exclude<keyof SamplingSettings, "stop">;
  label: string;
  hint: string;
  min: number;
  max?: number;
  step: number;
}

const NUMBERS: NumberSetting[] = [
  { name: "temperature", label: "Temperature", hint: "0 is the likeliest word, always", min: 0, max: 2, step: 0.1 },
  { name: "top_p", label: "Top p", hint: "the likeliest words that make up this share", min: 0, max: 1, step: 0.05 },
  { name: "top_k", label: "Top k", hint: "that many likeliest words", min: 1, step: 1 },
  { name: "min_p", label: "Min p", hint: "no word less likely than this share of the likeliest", min: 0, max: 1, step: 0.01 },
  { name: "repetition_penalty", label: "Repetition penalty", hint: "above 1 repeats less", min: 0.1, max: 2, step: 0.05 },
  { name: "max_tokens", label: "Max tokens", hint: "the longest answer", min: 1, step: 1 },
  { name: "seed", label: "Seed", hint: "the same answer every time", min: 0, step: 1 },
];

/** The system prompt and sampling of one conversation. New ones begin with what was set last. */
export function Settings({ conversation, onClose }: { conversation: Conversation; onClose: () => void }) {
  const set = (values: Partial<Pick<Conversation, "system" | "sampling">>) => {
    change(conversation.id, (now) => ({ ...now, ...values }));
    rememberedDefaults.value = { ...rememberedDefaults.value, ...values };
  };
  return (
    <Dialog title="Settings" class="side" onClose={onClose}>
      <form method="dialog" onSubmit={onClose}>
        <label class="field">
          <span>System prompt</span>
          <textarea
            rows={5}
            placeholder="What the model should know and how it should answer"
            value={conversation.system}
            onInput={(event) => set({ system: event.currentTarget.value })}
          />
        </label>
        <p class="hint">Where a field is empty, the model's own setting holds.</p>
        {NUMBERS.map((setting) => (
          <NumberField
            key={setting.name}
            setting={setting}
            value={conversation.sampling[setting.name]}
            onChange={(value) => set({ sampling: withValue(conversation.sampling, setting.name, value) })}
          />
        ))}
        <label class="field">
          <span>Stop at</span>
          <input
            type="text"
            placeholder="a text that ends the answer"
            value={conversation.sampling.stop?.[0] ?? ""}
            onInput={({ currentTarget: { value } }) =>
              set({ sampling: withValue(conversation.sampling, "stop", value ? [value] : undefined) })
            }
          />
        </label>
        <button type="button" class="quiet" onClick={() => set({ system: "", sampling: {} })}>
          As the model comes
        </button>
      </form>
    </Dialog>
  );
}

interface FieldProps {
  setting: NumberSetting;
  value: number | undefined;
  onChange: (value: number | undefined) => void;
}

function NumberField({ setting: { label, hint, min, max, step }, value, onChange }: FieldProps) {
  return (
    <label class="field number">
      <span>
        {label} <small>{hint}</small>
      </span>
      <input
        type="number"
        inputMode="decimal"
        placeholder="—"
        min={min}
        {...(max === undefined ? {} : { max })}
        step={step}
        value={value ?? ""}
        onInput={({ currentTarget: { value, valueAsNumber } }) =>
          onChange(value === "" || Number.isNaN(valueAsNumber) ? undefined : valueAsNumber)
        }
      />
    </label>
  );
}

function withValue<K extends keyof SamplingSettings>(
  sampling: SamplingSettings,
  name: K,
  value: SamplingSettings[K] | undefined,
): SamplingSettings {
  const { [name]: _, ...others } = sampling;
  return value === undefined ? others : { ...others, [name]: value };
}
