/** Calls to Lucius over HTTP, repeated while the server is away, and never past the time a reply is worth. */
import { setTimeout as pause } from "node:timers/promises";

import type { Ack, Directive, Progress, Result } from "./messages.js";

export type Reply = (Ack | Progress | Result) & { correlation_id?: string; traceparent?: string };

/** What became of a reply. `stop`: the attempt is no longer wanted. `notOurs`: its lease is another's. */
export interface Answer {
  outcome: string;
  stop: boolean;
  notOurs: boolean;
}

const DEADLINE_MS = { ACK: 20_000, PROGRESS: 10_000, RESULT: 600_000 } as const;
const REQUEST_MS = 10_000;
const PAUSE_MS_MIN = 100;
const PAUSE_MS_MAX = 5_000;
const RETRY_AFTER_MS_MAX = 30_000;
const AGAIN = new Set([408, 425, 429]);

export class Undelivered extends Error {}

export class Transport {
  readonly #url: string;
  readonly #headers: Record<string, string>;

  constructor(
    url: string,
    readonly service: string,
    apiKey: string | undefined,
  ) {
    this.#url = url.replace(/\/+$/, "");
    this.#headers = apiKey === undefined ? {} : { Authorization: `Bearer ${apiKey}` };
  }

  /**
   * Up to `most` directives; an empty list where none came within `waitSeconds`. Throws where the server cannot be asked.
   * Once `stopped`, an answer is taken for as long after the call was made as `answerWindowMs` then says.
   */
  async lease(most: number, waitSeconds: number, stopped: AbortSignal, answerWindowMs: () => number): Promise<unknown[]> {
    const wish = { service: this.service, max: most, wait_seconds: waitSeconds };
    const { signal, settled } = delayedStop(stopped, answerWindowMs);
    try {
      const until = AbortSignal.any([signal, AbortSignal.timeout(1000 * waitSeconds + REQUEST_MS)]);
      const answer = await send(`${this.#url}/v1/directives:lease`, wish, this.#headers, until);
      const document = (await answer.json()) as { directives?: unknown[]; detail?: string };
      if (answer.status !== 200) {
        await pause(retryAfterMs(answer), undefined, { signal: stopped });
        throw new Undelivered(`the lease was refused: ${document.detail ?? `status ${answer.status}`}`);
      }
      return document.directives ?? [];
    } finally {
      settled();
    }
  }

  /** Sends a reply until it is answered. Throws `Undelivered` once it is not worth sending any more. */
  async reply(directive: Directive, message: Reply): Promise<Answer> {
    const kind = message.type.toLowerCase() as "ack" | "progress" | "result";
    const url = directive.callback_urls?.[kind] ?? `${this.#url}/v1/callbacks/${kind}`;
    const headers = { Authorization: `Bearer ${directive.callback_token}` };
    const deadline = performance.now() + DEADLINE_MS[message.type];
    for (let wait = PAUSE_MS_MIN; ; wait = Math.min(2 * wait, PAUSE_MS_MAX)) {
      let asked = 0;
      let reason: string;
      try {
        const answer = await send(url, message, headers, AbortSignal.timeout(REQUEST_MS));
        if (answer.status === 200) {
          const { outcome, stop } = (await answer.json()) as { outcome?: string; stop?: boolean };
          return { outcome: outcome ?? "applied", stop: stop === true, notOurs: false };
        }
        await answer.body?.cancel();
        if (answer.status === 409) return { outcome: "stale", stop: true, notOurs: true };
        if (answer.status < 500 && !AGAIN.has(answer.status)) return { outcome: "refused", stop: true, notOurs: true };
        asked = retryAfterMs(answer);
        reason = `status ${answer.status}`;
      } catch (fault) {
        reason = fault instanceof Error ? fault.name : "no answer";
      }
      const rest = Math.max(wait * (0.5 + Math.random() / 2), asked);
      if (performance.now() + rest >= deadline) throw new Undelivered(`${message.type} given up: ${reason}`);
      await pause(rest);
    }
  }
}

/** A signal that is aborted once `stopped` is, but not before `answerWindowMs` have passed since now. */
function delayedStop(stopped: AbortSignal, answerWindowMs: () => number): { signal: AbortSignal; settled: () => void } {
  const ending = new AbortController();
  const since = performance.now();
  let timer: NodeJS.Timeout | undefined;
  const end = () => {
    timer = setTimeout(() => ending.abort(), Math.max(0, since + answerWindowMs() - performance.now()));
  };
  stopped.addEventListener("abort", end);
  const settled = () => {
    stopped.removeEventListener("abort", end);
    clearTimeout(timer);
  };
  return { signal: ending.signal, settled };
}

function send(url: string, document: unknown, headers: Record<string, string>, signal: AbortSignal): Promise<Response> {
  return fetch(url, {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers },
    body: JSON.stringify(document),
    signal,
  });
}

function retryAfterMs(answer: Response): number {
  const text = answer.headers.get("retry-after") ?? "";
  return /^\d+$/.test(text) ? Math.min(1000 * Number(text), RETRY_AFTER_MS_MAX) : 0;
}
