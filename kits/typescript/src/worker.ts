/** The life of a worker: lease, acknowledge, work, answer; and an end that leaves nothing half done. */
import { setTimeout as pause } from "node:timers/promises";

import { Final, Retryable, Stopped } from "./failures.js";
import type { Directive, Result } from "./messages.js";
import { Task, type OutputRef } from "./task.js";
import { Transport, type Answer, type Reply } from "./transport.js";

/** Does the work of one attempt. Answers with where its output lies, or with nothing. */
export type Handler<Payload = unknown> = (task: Task<Payload>) => Promise<OutputRef | null | void>;

export interface WorkerOptions {
  /** Of the server; LUCIUS_URL unless given, else http://127.0.0.1:8420. */
  url?: string;
  /** LUCIUS_API_KEY unless given. */
  apiKey?: string;
  /** How many attempts at a time. 8 unless given. */
  concurrency?: number;
  /** How long a call for work waits. 20 unless given. */
  waitSeconds?: number;
  /** How long attempts under way may take to end once the worker is told to. 30 unless given. */
  drainSeconds?: number;
  /** Told of what happens; to standard error unless given. */
  log?: (event: string, fields: Record<string, unknown>) => void;
}

const HEARTBEAT_MS_MAX = 60_000;
const HEARTBEAT_MS_MIN = 80;
const REPORT_MS = 1_000;
const REMEMBERED_MAX = 10_000;
const PAUSE_MS_MIN = 200;
const PAUSE_MS_MAX = 1_000;
const UNDELIVERED_MS = 30_000;
const FAREWELL_MS = 2_000;
const ANSWER_MS = 2_000;
const IDLE_ANSWER_MS = 500; // with nothing under way there is rarely a queue

export class Worker<Payload = unknown> {
  readonly #transport: Transport;
  readonly #concurrency: number;
  readonly #waitSeconds: number;
  readonly #drainSeconds: number;
  readonly #log: (event: string, fields: Record<string, unknown>) => void;
  readonly #ending = new AbortController();
  #stoppedAt = 0;
  readonly #running = new Map<Promise<void>, Task<Payload>>();
  readonly #stopped = new Promise<void>((done) => this.#ending.signal.addEventListener("abort", () => done()));
  readonly #known = new Map<string, Result | null>(); // by attempt; null while it is worked on
  readonly #newest = new Map<string, number>(); // the newest attempt of a step

  constructor(
    readonly service: string,
    private readonly handler: Handler<Payload>,
    options: WorkerOptions = {},
  ) {
    const url = options.url ?? process.env["LUCIUS_URL"] ?? "http://127.0.0.1:8420";
    this.#transport = new Transport(url, service, options.apiKey ?? process.env["LUCIUS_API_KEY"]);
    this.#concurrency = options.concurrency ?? 8;
    this.#waitSeconds = options.waitSeconds ?? 20;
    this.#drainSeconds = options.drainSeconds ?? 30;
    this.#log = options.log ?? ((event, fields) => console.error(event, JSON.stringify(fields)));
  }

  /** Leases no more; `run` returns once what is under way has ended. */
  stop(): void {
    if (!this.#ending.signal.aborted) this.#stoppedAt = performance.now();
    this.#ending.abort();
  }

  /** Works until `stop`, or until the process is sent SIGTERM or SIGINT. */
  async run(): Promise<void> {
    const stop = () => this.stop();
    process.on("SIGTERM", stop).on("SIGINT", stop);
    try {
      await this.#leaseUntilStopped();
      await this.#drain();
    } finally {
      process.off("SIGTERM", stop).off("SIGINT", stop);
    }
  }

  async #leaseUntilStopped(): Promise<void> {
    const { signal } = this.#ending;
    for (let failures = 0; !signal.aborted; ) {
      if (this.#running.size >= this.#concurrency) {
        await Promise.race([...this.#running.keys(), this.#stopped]);
        continue;
      }
      try {
        const room = this.#concurrency - this.#running.size;
        const leased = await this.#transport.lease(room, this.#waitSeconds, signal, () => this.#answerWindowMs());
        failures = 0;
        for (const each of leased) this.#begin(each);
      } catch (fault) {
        if (signal.aborted) return;
        failures += 1;
        if (failures <= 3 || failures % 15 === 0) this.#log("lease_failed", { reason: reasonOf(fault), failures });
        await pause(Math.min(PAUSE_MS_MAX, PAUSE_MS_MIN * 2 ** failures), undefined, { signal }).catch(() => {});
      }
    }
  }

  /**
   * A lease that was asked for just before the stop may be on its way here, answered: its directives would wait for
   * their ACK in vain, and cost an attempt. One that was asked for longer ago has nothing to bring.
   */
  #answerWindowMs(): number {
    return Math.min(this.#running.size > 0 ? ANSWER_MS : IDLE_ANSWER_MS, 1000 * this.#drainSeconds);
  }

  /** Waits for what is under way; what takes too long is told to stop and answered as shut down. */
  async #drain(): Promise<void> {
    const timer = new AbortController();
    const left = Math.max(0, this.#stoppedAt + 1000 * this.#drainSeconds - performance.now());
    const late = pause(left, "late", { signal: timer.signal, ref: false }).catch(() => "");
    if ((await Promise.race([this.#all(), late])) === "late") {
      this.#log("drain_gave_up", { under_way: this.#running.size });
      for (const task of this.#running.values()) task.stop();
      await Promise.race([this.#all(), pause(FAREWELL_MS, undefined, { signal: timer.signal }).catch(() => {})]);
    }
    timer.abort();
  }

  async #all(): Promise<void> {
    await Promise.all(this.#running.keys());
  }

  #begin(message: unknown): void {
    if (!isDirective(message)) {
      this.#log("directive_unreadable", {});
      return;
    }
    const step = JSON.stringify([message.jobId, message.stepId]);
    const newest = this.#newest.get(step) ?? 0;
    if (newest > message.attempt_no) {
      this.#log("directive_overtaken", named(message));
      return;
    }
    if (newest < message.attempt_no) {
      remember(this.#newest, step, message.attempt_no);
      for (const { directive, stop } of this.#tasks()) {
        if (directive.jobId === message.jobId && directive.stepId === message.stepId) stop();
      }
    }
    const task = new Task<Payload>(message, () => heart.report());
    const heart = new Heartbeat(task, () => this.#reply(task.directive, progressOf(task)));
    const running = this.#carryOut(task, heart)
      .catch((fault: unknown) => this.#log("directive_lost", { ...named(message), reason: reasonOf(fault) }))
      .finally(() => this.#running.delete(running));
    this.#running.set(running, task);
  }

  *#tasks(): Iterable<{ directive: Directive; stop: () => void }> {
    for (const task of this.#running.values()) yield { directive: task.directive, stop: () => task.stop() };
  }

  /** Copies of a directive share one attempt: those that come later are answered with its RESULT. */
  async #carryOut(task: Task<Payload>, heart: Heartbeat): Promise<void> {
    const { directive } = task;
    const key = JSON.stringify([directive.jobId, directive.stepId, directive.attempt_no, directive.lease_id]);
    let result = this.#known.get(key);
    if (result === null) return;
    if (result === undefined) {
      remember(this.#known, key, null);
      result = await this.#attempt(task, heart);
      if (result === null) {
        this.#known.delete(key);
        return;
      }
      this.#known.set(key, result);
    }
    await this.#deliver(directive, result);
  }

  /** A RESULT that was not delivered is sent again now and then, until the worker ends. */
  async #deliver(directive: Directive, result: Result): Promise<void> {
    const { signal } = this.#ending;
    while ((await this.#reply(directive, result)) === null && !signal.aborted) {
      await pause(UNDELIVERED_MS, undefined, { signal }).catch(() => {});
    }
  }

  /** The RESULT; null where the attempt is another's. */
  async #attempt(task: Task<Payload>, heart: Heartbeat): Promise<Result | null> {
    const { directive } = task;
    // Should the ACK not get through, the work is done all the same: a RESULT implies it.
    const answer = await this.#reply(directive, { ...head(directive), type: "ACK" });
    if (answer?.notOurs) return null;
    if (answer?.stop) return failed(directive, "FAILED_RETRY", "STOPPED", "stopped before the work began");
    heart.start();
    try {
      const output_ref = (await this.handler(task)) ?? null;
      return { ...head(directive), type: "RESULT", status: "SUCCEEDED", output_ref };
    } catch (fault) {
      return this.#failure(task, fault);
    } finally {
      await heart.stop(); // a sign of life that arrives after the RESULT is only noise
    }
  }

  #failure(task: Task<Payload>, fault: unknown): Result {
    const { directive } = task;
    if (fault instanceof Final) return failed(directive, "FAILED_FINAL", fault.code, fault.message);
    if (fault instanceof Retryable) {
      const { retryAfter, slowDown } = fault.wish;
      const wish = { ...(retryAfter !== undefined && { retry_after: retryAfter }), ...(slowDown && { slow_down: true }) };
      return { ...failed(directive, "FAILED_RETRY", fault.code, fault.message), ...wish };
    }
    if (task.signal.aborted || fault instanceof Stopped) {
      const ended = this.#ending.signal.aborted;
      const text = ended ? "the service was shut down during the work" : "stopped at the orchestrator's word";
      return failed(directive, "FAILED_RETRY", ended ? "SHUTDOWN" : "STOPPED", text);
    }
    this.#log("handler_failed", { ...named(directive), reason: reasonOf(fault) });
    return failed(directive, "FAILED_RETRY", "UNEXPECTED", reasonOf(fault)); // its text could hold anything
  }

  /** Null where it could not be delivered, which must not end the work. */
  async #reply(directive: Directive, message: Reply): Promise<Answer | null> {
    try {
      const answer = await this.#transport.reply(directive, message);
      if (answer.outcome === "refused") this.#log("reply_refused", { ...named(directive), type: message.type });
      return answer;
    } catch (fault) {
      this.#log("reply_undelivered", { ...named(directive), type: message.type, reason: reasonOf(fault) });
      return null;
    }
  }
}

/** Signs of life of one attempt: in time for its lease, and as its handler reports, but not more than one a second. */
class Heartbeat {
  #timer: NodeJS.Timeout | undefined;
  #sentAt = 0;
  #beat: Promise<void> = Promise.resolve();
  #over = false;
  readonly #everyMs: number;

  constructor(
    private readonly task: Task<never> | Task<unknown>,
    private readonly send: () => Promise<Answer | null>,
  ) {
    const third = (1000 * (task.directive.lease_seconds ?? Infinity)) / 3;
    this.#everyMs = Math.max(HEARTBEAT_MS_MIN, Math.min(HEARTBEAT_MS_MAX, third));
  }

  start(): void {
    this.#sentAt = performance.now();
    this.#timer = setInterval(() => this.#go(), this.#everyMs);
  }

  report(): void {
    if (this.#timer !== undefined && performance.now() - this.#sentAt >= REPORT_MS) this.#go();
  }

  async stop(): Promise<void> {
    this.#over = true;
    clearInterval(this.#timer);
    await this.#beat;
  }

  #go(): void {
    if (this.#over) return;
    this.#sentAt = performance.now();
    this.#beat = this.#beat
      .then(() => (this.#over ? null : this.send()))
      .then((answer) => {
        if (answer?.stop) this.task.stop();
      });
  }
}

function head(directive: Directive) {
  const { jobId, stepId, tenant_id, attempt_no, lease_id, correlation_id, traceparent } = directive;
  return { jobId, stepId, tenant_id, attempt_no, lease_id, timestamp: new Date().toISOString(), correlation_id, traceparent };
}

function progressOf(task: Task<never> | Task<unknown>): Reply {
  const { percent, note } = task;
  return { ...head(task.directive), type: "PROGRESS", progress: percent, ...(note !== null && { note }) };
}

function failed(directive: Directive, status: "FAILED_RETRY" | "FAILED_FINAL", code: string, message: string): Result {
  return { ...head(directive), type: "RESULT", status, error: { code: whole(code), message: whole(message) } };
}

/** Without half a character, as a text that was cut may end with: that is no JSON. */
function whole(text: string): string {
  return Buffer.from(text, "utf8").toString("utf8");
}

function isDirective(message: unknown): message is Directive {
  const it = message as Partial<Directive> | null;
  if (typeof it !== "object" || it === null || !Number.isInteger(it.attempt_no)) return false;
  const texts = [it.jobId, it.stepId, it.tenant_id, it.lease_id, it.callback_token];
  return texts.every((text) => typeof text === "string" && text !== "");
}

function named(directive: Directive): Record<string, unknown> {
  const { jobId, stepId, attempt_no, lease_id } = directive;
  return { jobId, stepId, attempt_no, lease_id };
}

/** A map that forgets its oldest entries. */
function remember<Value>(map: Map<string, Value>, key: string, value: Value): void {
  map.delete(key);
  map.set(key, value);
  for (const oldest of map.keys()) {
    if (map.size <= REMEMBERED_MAX) break;
    map.delete(oldest);
  }
}

function reasonOf(fault: unknown): string {
  if (!(fault instanceof Error)) return "not an error";
  const cause = (fault.cause as NodeJS.ErrnoException | undefined)?.code;
  return fault.constructor.name === "Undelivered" ? fault.message : (cause ?? fault.name);
}
