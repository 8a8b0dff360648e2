/** Measures time to first token and tokens per second of an answer, in the browser. */

import type { Usage } from "../api/types";
import type { Stats } from "./conversation";

/** Measures one answer. Until the server sends the token counts, each delta counts as one token. Mutable. */
export class AnswerTimer {
  private readonly startedAt = performance.now();
  private firstAt = 0;
  private lastAt = 0;
  private numDeltas = 0;
  private usage: Usage | undefined;

  /** `numPrevious` is the number of tokens of an answer that is continued. */
  constructor(private readonly numPrevious = 0) {}

  recordDelta(): void {
    this.lastAt = performance.now();
    this.firstAt ||= this.lastAt;
    this.numDeltas += 1;
  }

  recordUsage(usage: Usage): void {
    this.usage = usage;
  }

  get stats(): Stats {
    const numNew = this.usage?.completion_tokens ?? this.numDeltas;
    const stats: Stats = { answerTokens: this.numPrevious + numNew, isEstimate: !this.usage };
    if (this.firstAt) stats.firstTokenMs = this.firstAt - this.startedAt;
    if (numNew > 1 && this.lastAt > this.firstAt) stats.tokensPerSecond = ((numNew - 1) * 1000) / (this.lastAt - this.firstAt);
    if (this.usage) {
      stats.promptTokens = this.usage.prompt_tokens;
      stats.cachedTokens = this.usage.prompt_tokens_details?.cached_tokens ?? 0;
    }
    return stats;
  }
}
