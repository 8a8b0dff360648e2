/** The fields of the server's objects that this page reads. */

export interface Model {
  id: string;
  max_model_len: number;
}

export interface ChatTurn {
  role: "system" | "user" | "assistant";
  content: string;
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  prompt_tokens_details?: { cached_tokens?: number };
}

interface Delta {
  content?: string | null;
  reasoning_content?: string | null;
}

/** An event of a stream of chat completions (`delta`) or completions (`text`). */
export interface StreamEvent {
  choices?: { delta?: Delta; text?: string; finish_reason?: string | null }[];
  usage?: Usage | null;
  error?: { message: string };
}

/** Sampling parameters of a request; the model's defaults apply to those left out. */
export interface SamplingSettings {
  temperature?: number;
  top_p?: number;
  top_k?: number;
  min_p?: number;
  repetition_penalty?: number;
  max_tokens?: number;
  seed?: number;
  stop?: string[];
}
