/** The server's objects, as far as this page reads them. */

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

/** An event of a stream, from chats (`delta`) and completions (`text`) alike. */
export interface StreamEvent {
  choices?: { delta?: Delta; text?: string; finish_reason?: string | null }[];
  usage?: Usage | null;
  error?: { message: string };
}

/** What a request may say about sampling; what is left out is as the model's own settings say. */
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
