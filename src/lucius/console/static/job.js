// One job: why it is where it is, its attempts over time, its steps, its events as they come, and its controls.

import { artifactPanel } from "/console/artifacts.js";
import { call, get, jobPath, listen, pause, post } from "/console/api.js";
import { el, fill, svg } from "/console/dom.js";
import { attemptsOf, detailOf, eventWords, phaseText, phasesOf } from "/console/events.js";
import { legend } from "/console/charts.js";
import { may, session } from "/console/session.js";
import { ago, between, duration, exact, inZone, mark, serverNow, when } from "/console/time.js";
import { ENDED, badge, button, confirmed, copyButton, facts, fault, jobLink, json, name, panel, stateTone, tag } from "/console/ui.js";

const EVENTS_AT_ONCE = 1000;
const EVENTS_SHOWN_MAX = 500;
const GATHER_MS = 150; // events come in bursts: the job is read once after each
const CLOCK_MS = 1000;

// Which control makes sense where; Lucius has the last word.
const CONTROLS = [
  { verb: "pause", words: "Pause", states: ["QUEUED", "DISPATCHING", "IN_PROGRESS"], text: "No further attempt begins until the job is resumed. The attempt that runs may end." },
  { verb: "resume", words: "Resume", states: ["PAUSING", "PAUSED"], at_once: true },
  { verb: "cancel", words: "Cancel", danger: true, states: ["QUEUED", "DISPATCHING", "IN_PROGRESS", "PAUSING", "PAUSED"], text: "The job ends without a result, and the running attempt is told to stop. A cancel cannot be taken back; the job can be run again." },
];


const reference = (ref, what) => (ref?.uri ? el("span", { class: "ref" }, el("span", { class: "id" }, ref.uri), copyButton(ref.uri, what)) : "");

// What was sent. In which part of the payload each step finds its own, the protocol says.
function commandOf(job, protocol) {
  const [first] = job.steps;
  const keys = protocol.steps.map((step) => step.payload_key);
  const payload = keys.some(Boolean) ? Object.fromEntries(job.steps.map((step, at) => [keys[at], step.payload]).filter(([key]) => key)) : first.payload;
  const kept = Object.fromEntries(["doc_id", "correlation_id"].filter((key) => job[key]).map((key) => [key, job[key]]));
  return { schema_version: "1", tenant_id: job.tenant_id, request_type: job.request_type, mode: job.mode, input_ref: first.input_ref, output_ref: first.output_ref, payload, ...kept };
}

// Whether all that comes next is in the summary already.
const repeats = ({ summary, next }) => next.what.split(" ").every((word) => summary.includes(word));

export function jobPage(jobId) {
  const place = jobPath(jobId);
  const events = [];
  let job = null;
  let told = null;
  let shownState = "";
  const stopped = new AbortController();

  const heading = el("div", { class: "job-head" }, el("h1", { tabindex: -1, class: "id" }, jobId), copyButton(jobId, "the job's id"));
  const state = el("span");
  const live = el("span", { class: "live waiting" }, "Connecting");
  const controls = el("div", { class: "buttons" });
  const why = el("section", { class: "why", "aria-label": "Why" });
  const about = el("div");
  const timeline = el("div");
  const steps = el("div", { class: "stack-tight" });
  const trail = el("div");
  const data = el("div", { class: "stack-tight" });
  const artifacts = session.artifacts ? artifactPanel(jobId) : null;
  const body = el("div", { class: "stack" }, why, panel("", about), panel("Timeline", timeline, {
    aside: legend([["idle", "waits to leave"], ["ack", "waits for ACK"], ["run", "at work"], ["backoff", "waits to retry"]]) }),
  panel("Steps", steps), artifacts ? panel("Artifacts", artifacts.node) : "", panel("Events", trail), panel("As data", data));

  const offered = (wanted) => told.actions.filter(({ action }) => action === wanted);

  // The name of a service stays as it is written.
  function sentence(words) {
    const [first] = words.split(" ", 1);
    return job.steps.some(({ service }) => service === first) ? words : words.charAt(0).toUpperCase() + words.slice(1);
  }

  const command = el("details", { "data-key": "command" }, el("summary", {}, "The command, to be sent again"));
  command.addEventListener("toggle", async () => {
    if (!command.open || command.childElementCount > 1) return;
    try {
      const sent = JSON.stringify(commandOf(job, await get(`/v1/protocols/${encodeURIComponent(job.protocol_id)}`)), null, 2);
      const key = session.auth === "required" ? " -H \"Authorization: Bearer $LUCIUS_API_KEY\"" : "";
      const asCurl = `curl -s${key} -H 'Content-Type: application/json' -d '${sent.replaceAll("'", "'\\''")}' ${location.origin}/v1/orchestrate`;
      command.append(el("div", { class: "stack-tight" }, json(sent, "the command"), el("div", { class: "buttons" }, copyButton(asCurl, "the command as curl", "curl"))));
    } catch (error) {
      fault(error);
    }
  });

  // -- controls

  async function control({ verb, words, text, danger, at_once: atOnce }) {
    if (!atOnce && !(await confirmed({ title: `${words} this job?`, body: [el("p", {}, text), el("p", { class: "id" }, jobId)], words, danger }))) return;
    await call("POST", `${place}:${verb}`);
    await read();
  }

  async function rerun() {
    const needed = offered("rerun")[0]?.from_step_needed ?? job.state === "SUCCEEDED"; // nothing of it failed
    const from = el("select", { "aria-label": "From which step" }, needed ? "" : el("option", { value: "" }, "the first step that did not succeed"),
      job.steps.map((step) => el("option", { value: step.stepId }, `${step.stepId}, ${step.step_type}`)));
    const sure = await confirmed({ title: "Run this job again?", words: "Run again", body: [el("p", {}, "A new job is made; this one stays as it is."), el("label", { class: "field" }, el("span", {}, "From"), from)] });
    if (!sure) return;
    const made = await post(`${place}:rerun`, from.value ? { from_step: from.value } : {});
    location.hash = `#/jobs/${encodeURIComponent(made.jobId)}`;
  }

  async function adopt({ stepId, seq }) {
    const sure = await confirmed({ title: "Adopt this late result?", words: "Adopt", body: [el("p", {}, `An attempt at ${stepId} succeeded after its time was up (event ${seq}). A new job takes its result over and goes on from there.`)] });
    if (!sure) return;
    const made = await post(`${place}:adopt`, { stepId, seq });
    location.hash = `#/jobs/${encodeURIComponent(made.jobId)}`;
  }

  function drawControls() {
    const fitting = may("control") ? CONTROLS.filter(({ states }) => states.includes(job.state)) : [];
    const url = `${location.origin}${place}`;
    const key = session.auth === "required" ? " -H \"Authorization: Bearer $LUCIUS_API_KEY\"" : "";
    fill(controls, [
      fitting.map((each) => button(each.words, () => control(each), { kind: each.danger ? "danger" : "" })),
      may("control") && (offered("rerun").length || job.state === "SUCCEEDED") ? button("Run again", rerun) : "",
      copyButton(`curl -s${key} '${url}'`, "as curl", "curl"),
      copyButton(`lucius jobs show ${jobId}`, "as CLI command", "CLI"),
    ]);
  }

  // -- what is drawn

  function drawWhy() {
    const adoptable = may("admin") ? offered("adopt") : [];
    why.className = `why ${stateTone(job.state)}`;
    fill(why, [el("p", { class: "summary" }, sentence(inZone(told.summary))), told.next && !repeats(told) ? el("p", {}, `Next: ${inZone(told.next.what)}.`) : "",
      told.hints.length ? el("ul", {}, told.hints.map((hint) => el("li", {}, sentence(inZone(hint))))) : "",
      adoptable.map((each) => button(`Adopt the late result of ${each.stepId}`, () => adopt(each), { key: `adopt ${each.seq}` })),
      told.adoptions.map((each) => el("p", { "data-key": `adopted ${each.seq}` }, `The late result of ${each.stepId} was adopted by `, jobLink(each.jobId), "."))]);
  }

  function trace() {
    const id = job.traceparent?.split("-")[1];
    if (!id) return "";
    return session.links.trace ? el("a", { href: session.links.trace.replace("{trace_id}", encodeURIComponent(id)), class: "id", rel: "noreferrer" }, name(id)) : el("span", { class: "id" }, name(id));
  }

  function drawAbout() {
    fill(about, [facts([
      ["Tenant", el("a", { href: `#/jobs?${new URLSearchParams({ tenant_id: job.tenant_id })}` }, job.tenant_id)],
      ["Request type", job.request_type], ["Protocol", job.protocol_id],
      ["Created", [when(job.created_at), " (", ago(job.created_at), ")"]], ["Ended", when(job.completed_at)], ["Took", between(job.created_at, job.completed_at)],
      ["Document", job.doc_id], ["Mode", job.mode], ["Engine", job.engine], ["Attempts", job.attempts_total],
      ["Error", job.error_code && `${job.error_code}: ${job.error_message ?? ""}`, "wide"],
      ["Result", job.final_output && reference({ uri: job.final_output }, "the result's address"), "wide"],
      ["Run again from", job.rerun_of && jobLink(job.rerun_of)], ["Run again as", told.again_as && jobLink(told.again_as)],
      ["Correlation id", job.correlation_id && el("span", { class: "id" }, job.correlation_id)], ["Trace", trace()],
    ])]);
  }

  function drawTimeline() {
    const now = job.completed_at ? Date.parse(job.completed_at) : serverNow();
    const begin = Date.parse(job.created_at);
    const attempts = attemptsOf(events);
    const end = Math.max(now, begin + 1, ...attempts.map((each) => (job.completed_at ? 0 : each.againAt ?? 0)));
    const span = end - begin;
    const x = (at) => 1000 * (Math.min(Math.max(at, begin), end) - begin) / span;
    const lines = job.steps.map((step) => {
      const own = attempts.filter(({ stepId }) => stepId === step.stepId);
      return [
        el("li", { class: "gantt-step", "data-key": step.stepId }, el("span", { class: "gantt-name" }, el("strong", {}, name(step.step_type)), el("span", { class: "quiet" }, name(step.service))), own.length ? "" : el("span", { class: "quiet" }, "not begun")),
        own.map((attempt) => {
          const phases = phasesOf(attempt, now).filter(({ from }) => from <= end);
          const words = `${step.step_type}, attempt ${attempt.number}: ${phases.map(phaseText).join(", ")}${attempt.cause ? `; ${attempt.cause}` : ""}`;
          return el("li", { class: "gantt-line", "data-key": attempt.key, title: words },
            el("span", { class: "gantt-name" }, `attempt ${attempt.number}`),
            svg("svg", { viewBox: "0 0 1000 14", preserveAspectRatio: "none", role: "img", "aria-label": words },
              svg("rect", { class: "g-track", width: 1000, height: 14 }),
              phases.map(({ kind, from, to }) => svg("rect", { class: `g-${kind} ${kind === "work" ? attempt.tone ?? "" : ""}`, x: Math.min(x(from), 996), width: Math.max(kind === "work" ? 4 : 2, x(to) - x(from)), height: 14 }))),
            el("span", { class: "gantt-took figure" }, duration((attempt.endedAt ?? now) - attempt.begunAt)));
        })];
    });
    const ticks = [0, 0.25, 0.5, 0.75, 1].map((part) => el("span", {}, part ? mark(part * span, span) : "0"));
    fill(timeline, [el("div", { class: "gantt-axis", "aria-hidden": "true" }, ticks), el("ul", { class: "gantt" }, lines)]);
  }

  const stepFacts = (step) => facts([
    ["Service", step.service], ["Lane", step.lane], ["Attempt", step.attempt_no || ""],
    ["Progress", step.progress === null || ENDED.has(step.state) ? "" : `${step.progress} %`],
    ["Deadline", when(step.lease_expires_at)], ["Next attempt", when(step.next_attempt_at)], ["Ended", when(step.completed_at)],
    ["Mode", `${step.resolved_mode}, decided by ${step.decision_source} (${step.decision_reason})`],
    ["Last error", step.last_error_code && `${step.last_error_code}: ${step.last_error_message ?? ""}`, "wide"],
    ["Input", reference(step.input_ref, "the input's address"), "wide"], ["Workspace", reference(step.workspace_ref, "the workspace's address"), "wide"],
    ["Result", reference(step.result_ref, "the result's address"), "wide"],
  ]);

  function drawSteps() {
    fill(steps, job.steps.map((step) => el("details", { class: "step", "data-key": step.stepId },
      el("summary", {}, el("span", { class: "step-title" }, el("strong", {}, step.stepId), name(step.step_type), badge(step.state),
        step.progress !== null && !ENDED.has(step.state) ? tag(`${step.progress} %`, "run plain") : "",
        step.last_error_code ? el("span", { class: "quiet" }, name(step.last_error_code)) : "")),
      stepFacts(step), el("h3", {}, "Payload"), json(step.payload, `the payload of ${step.stepId}`),
      el("details", { class: "more", "data-key": "json" }, el("summary", {}, "The step as JSON"), json(step, `${step.stepId} as JSON`)))));
  }

  function drawTrail() {
    const lines = events.slice(-EVENTS_SHOWN_MAX).reverse().map((event) => {
      const [words, tone] = eventWords(event);
      const where = [event.stepId, event.attempt_no ? `attempt ${event.attempt_no}` : ""].filter(Boolean).join(", ");
      return el("li", { "data-key": event.seq, class: tone }, el("span", { class: "event-at figure" }, exact(event.at)),
        el("span", { class: "event-words" }, el("span", {}, words), detailOf(event, `${event.seq} · ${event.type}${where ? ` · ${where}` : ""}`)));
    });
    fill(trail, [el("ol", { class: "events" }, lines),
      events.length > EVENTS_SHOWN_MAX ? el("p", { class: "quiet" }, `The latest ${EVENTS_SHOWN_MAX} of ${events.length}. All of them: lucius jobs events ${jobId}`) : ""]);
  }

  function drawData() {
    fill(data, [command, el("details", { "data-key": "job" }, el("summary", {}, "The job as JSON"), json(job, "the job as JSON")),
      el("details", { "data-key": "why" }, el("summary", {}, "The explanation as JSON"), json(told, "the explanation as JSON"))]);
  }

  function draw() {
    if (shownState !== job.state) document.title = `${job.state === "SUCCEEDED" ? "✓ " : job.state === "FAILED_FINAL" ? "✗ " : ""}${jobId} · Lucius`;
    shownState = job.state;
    fill(state, [badge(job.state)]);
    drawControls();
    drawWhy();
    drawAbout();
    drawTimeline();
    drawSteps();
    drawTrail();
    drawData();
  }

  // -- what is read

  const latest = () => events.at(-1)?.seq ?? 0;

  function take(fresh) {
    events.push(...fresh.filter((event) => event.seq > latest()));
  }

  async function readEvents() {
    for (let page = null; page === null || page.items.length === EVENTS_AT_ONCE; ) {
      page = await get(`${place}/events`, { after: latest(), limit: EVENTS_AT_ONCE });
      take(page.items);
    }
  }

  async function read() {
    [job, told] = await Promise.all([get(place), get(`${place}:explain`, { times: "rfc3339" })]);
    draw();
  }

  let gathering = null;
  function readSoon() {
    gathering ??= pause(GATHER_MS, stopped.signal).then(async () => {
      gathering = null;
      if (!stopped.signal.aborted) await read();
    }).catch(fault);
  }

  function setLive(kind, words) {
    live.className = `live ${kind}`;
    live.textContent = words;
  }

  // The stream tells of each event; the job is read again after it, and at no other time.
  async function follow() {
    try {
      await listen(() => `${place}/events?after=${latest()}`, {
        signal: stopped.signal,
        onEvent: ({ data: event }) => { take([event]); readSoon(); },
        onState: (now) => setLive(now === "live" ? "" : "waiting", now === "live" ? "Live" : "Connecting again"),
      });
      if (!stopped.signal.aborted) setLive("ended", "Ended");
    } catch (error) {
      setLive("waiting", "Not live");
      fault(error);
    }
  }

  const ticking = setInterval(() => { if (job && !ENDED.has(job.state) && !document.hidden) { drawTimeline(); drawAbout(); } }, CLOCK_MS);

  let following = false;
  async function refresh() {
    await readEvents();
    await read();
    if (!following) follow();
    following = true;
  }

  return {
    title: jobId, crumb: el("a", { href: "#/jobs" }, "Jobs"), heading: [heading, state, live], aside: controls, body, refresh,
    stop: () => { stopped.abort(); clearInterval(ticking); artifacts?.stop(); },
  };
}
