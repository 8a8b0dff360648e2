import type { Stats } from "../model/conversation";

/** Token counts and speed of an answer, in one line. */
export function StatsLine({ stats }: { stats: Stats }) {
  const about = stats.isEstimate ? "≈ " : "";
  const facts = [
    stats.tokensPerSecond !== undefined && `${about}${speed(stats.tokensPerSecond)} tokens/s`,
    stats.firstTokenMs !== undefined && `first token ${duration(stats.firstTokenMs)}`,
    stats.promptTokens !== undefined && `${count(stats.promptTokens)} tokens in${cached(stats.cachedTokens)}`,
    stats.answerTokens > 0 && `${about}${count(stats.answerTokens)} out`,
  ];
  return <p class="stats">{facts.filter(Boolean).join(" · ")}</p>;
}

function cached(tokens = 0): string {
  return tokens ? ` (${count(tokens)} cached)` : "";
}

function count(tokens: number): string {
  return tokens.toLocaleString("en");
}

function speed(value: number): string {
  return value < 10 ? value.toFixed(1) : count(Math.round(value));
}

function duration(ms: number): string {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}
