/** The speed of an answer, measured where it is read. */

import type { Usage } from "../api/types";
import type { Stats } from "./conversation";

/** Takes the times of one answer. Until the server tells the tokens, each part counts as one. Mutable. */
export class AnswerClock {
  private readonly asked = performance.now();
  private first = 0;
  private last = 0;
  private numParts = 0;
  private usage: Usage | undefined;

  /** `before` are the tokens of the beginning, where an answer is continued. */
  constructor(private readonly before = 0) {}

  tick(): void {
    this.last = performance.now();
    this.first ||= this.last;
    this.numParts += 1;
  }

  told(usage: Usage): void {
    this.usage = usage;
  }

  get stats(): Stats {
    const numNew = this.usage?.completion_tokens ?? this.numParts;
    const stats: Stats = { answerTokens: this.before + numNew, isEstimate: !this.usage };
    if (this.first) stats.firstTokenMs = this.first - this.asked;
    if (numNew > 1 && this.last > this.first) stats.tokensPerSecond = ((numNew - 1) * 1000) / (this.last - this.first);
    if (this.usage) {
      stats.promptTokens = this.usage.prompt_tokens;
      stats.cachedTokens = this.usage.prompt_tokens_details?.cached_tokens ?? 0;
    }
    return stats;
  }
}
