// The events of a job in words, and the phases of its attempts.

import { el } from "/console/dom.js";
import { duration, shortTime } from "/console/time.js";

const due = (data) => (data.deadline_at ? `due by ${shortTime(data.deadline_at)}` : "awaited");
const cause = (data) => [data.error_code ?? data.code, data.error_message ?? data.message ?? data.reason].filter(Boolean).join(": ");
const because = (data) => (cause(data) ? `: ${cause(data)}` : "");
const replied = (data) => [data.reply?.type, data.reply?.status].filter(Boolean).join(" ");

// What is said of each type, and how it looks.
const WORDS = {
  JOB_CREATED: (data) => [`Accepted as ${data.request_type}, protocol ${data.protocol_id}`, "idle"],
  ATTEMPT_BEGUN: () => ["Attempt begun", "run"],
  DIRECTIVE_PUBLISHED: (data) => [`Directive on its way, ACK ${due(data)}`, "run"],
  PUBLISH_FAILED: (data) => [`The directive could not leave${because(data)}`, "warn"],
  PUBLISH_HURRIED: () => ["An operator had the directive tried at once", "idle"],
  STEP_ACKED: (data) => [`A worker took it, result ${due(data)}`, "run"],
  STEP_PROGRESSED: (data) => [`${data.progress ?? "?"} %${data.note ? `: ${data.note}` : ""}`, "run"],
  STEP_SUCCEEDED: () => ["Step succeeded", "ok"],
  STEP_RETRYING: (data) => data.service ? [`Attempts are used${because(data)}; ${data.service} is asked instead`, "warn"] : data.stopped ? ["Attempt stopped for the pause; it does not count", "warn"] : [`Attempt failed${because(data)}${data.next_attempt_at ? `; next one at ${shortTime(data.next_attempt_at)}` : ""}`, "warn"],
  STEP_FAILED: (data) => [`Step failed for good${because(data)}`, "bad"],
  STEP_CANCELLED: () => ["Step cancelled", "idle"],
  JOB_SUCCEEDED: () => ["Job succeeded", "ok"],
  JOB_FAILED: (data) => [`Job failed for good${because(data)}`, "bad"],
  JOB_CANCELLING: () => ["Cancel asked for; the running attempt is told to stop", "warn"],
  JOB_CANCELLED: () => ["Job cancelled", "idle"],
  JOB_PAUSING: () => ["Pause asked for; the running attempt ends or stops first", "warn"],
  JOB_PAUSED: (data) => [data.reason === "EXHAUSTED" ? `Job parked, its attempts are used${because(data)}` : "Job paused", "warn"],
  JOB_RESUMED: () => ["Job resumed", "run"],
  SLA_ESCALATED: () => ["The step takes longer than its protocol expects", "warn"],
  REPLY_DUPLICATE: (data) => [`A reply came twice: ${replied(data)}`, "idle"],
  REPLY_LATE: (data) => [`A reply came too late: ${replied(data)}`, "warn"],
  REPLY_STALE: (data) => [`A reply of an earlier attempt: ${replied(data)}`, "idle"],
  REPLY_REFUSED: (data) => [`A reply was refused: ${replied(data)}${because(data)}`, "warn"],
};

export const eventWords = (event) => (WORDS[event.type] ?? (() => [event.type, "idle"]))(event.data ?? {});

const ENDS = { STEP_SUCCEEDED: "ok", STEP_RETRYING: "warn", STEP_FAILED: "bad", STEP_CANCELLED: "idle" };

// What each attempt spent its time on: until its directive left, until the ACK, at work, and until the next attempt.
export function attemptsOf(events) {
  const attempts = new Map();
  for (const event of events) {
    if (!event.stepId) continue;
    const key = `${event.stepId} ${event.attempt_no}`;
    if (event.type === "ATTEMPT_BEGUN")
      attempts.set(key, { key, stepId: event.stepId, number: event.attempt_no, begunAt: Date.parse(event.at), notes: [] });
    const attempt = attempts.get(key);
    if (!attempt) continue;
    const at = Date.parse(event.at);
    if (event.type === "DIRECTIVE_PUBLISHED") attempt.leftAt ??= at;
    else if (event.type === "STEP_ACKED") attempt.ackedAt ??= at;
    else if (ENDS[event.type] && !attempt.endedAt) {
      attempt.endedAt = at;
      attempt.tone = ENDS[event.type];
      attempt.cause = cause(event.data ?? {});
      if (event.data?.next_attempt_at) attempt.againAt = Date.parse(event.data.next_attempt_at);
    }
  }
  return [...attempts.values()];
}

export function phasesOf(attempt, now) {
  const end = attempt.endedAt ?? now;
  const marks = [["waiting", attempt.begunAt, attempt.leftAt], ["ack", attempt.leftAt, attempt.ackedAt], ["work", attempt.ackedAt, end]];
  const phases = marks.filter(([, from]) => from !== undefined)
    .map(([kind, from, to]) => ({ kind, from, to: Math.min(to ?? end, end) }));
  if (attempt.againAt) phases.push({ kind: "backoff", from: end, to: attempt.againAt });
  return phases.filter(({ from, to }) => to >= from);
}

export const phaseWords = { waiting: "waits to leave", ack: "waits for ACK", work: "at work", backoff: "waits to retry" };

export const phaseText = ({ kind, from, to }) => `${phaseWords[kind]} ${duration(to - from)}`;

export const detailOf = (event, words) => (Object.keys(event.data ?? {}).length
  ? el("details", {}, el("summary", {}, words), el("pre", {}, JSON.stringify(event.data, null, 2)))
  : el("span", { class: "event-meta" }, words));
