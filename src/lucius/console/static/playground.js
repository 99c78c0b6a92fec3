// A command to try: a form from the schemas of its protocol, what would become of it as it is written, and off it goes.

import { call, get } from "/console/api.js";
import { el, fill } from "/console/dom.js";
import { fieldsOf, withCode } from "/console/fields.js";
import { drawing } from "/console/protocols.js";
import { may, session } from "/console/session.js";
import { button, choice, copyButton, count, facts, jobLink, panel, tag } from "/console/ui.js";

const SETTLE_MS = 300;

const COMMAND = {
  required: ["tenant_id", "input", "output"],
  properties: {
    tenant_id: { title: "Tenant", type: "string", description: "Who the job is for." },
    input: { title: "Input", type: "string", description: "The address of the document, which the first service reads." },
    output: { title: "Output", type: "string", description: "The address that the result is for." },
  },
};
const MORE = {
  properties: {
    mode: { title: "Mode", enum: ["DEFAULT", "BURST"], description: "BURST spreads a tenant's jobs over all lanes, by document." },
    doc_id: { title: "Document id", type: "string", description: "Required for BURST." },
    idempotency_key: { title: "Idempotency key", type: "string", description: "The same key never makes two jobs." },
    correlation_id: { title: "Correlation id", type: "string", description: "Your own id for the job." },
    completed: { title: "Webhook", type: "string", description: "The address that is told when the job has ended." },
  },
};

const newKey = () => `playground-${[...crypto.getRandomValues(new Uint8Array(6))].map((each) => each.toString(16).padStart(2, "0")).join("")}`;

// What was written survives a look at another page, and the typing in of a key. The payload of each request type is
// its own: that of one is never sent with another.
const draft = { type: "", text: null, command: {}, more: { idempotency_key: newKey() }, payloads: {} };

export function playgroundPage(query) {
  let protocols = [];
  let protocol = null;
  let form = null;
  let asJson = draft.text !== null;
  let planned = 0;
  const type = el("select", { onchange: () => pick(type.value) });
  const ways = el("div");
  const fields = el("div", { class: "stack-tight" });
  const text = el("textarea", { id: "envelope", class: "code", rows: 22, spellcheck: "false" });
  const written = el("label", { class: "field" }, el("span", {}, "Envelope"), text);
  const verdict = el("div", { class: "stack-tight", "aria-live": "polite" });
  const source = el("p", { class: "quiet small-text" });

  text.addEventListener("input", () => { draft.text = text.value; planSoon(); });

  // -- the envelope

  function envelope() {
    if (asJson) return text.value;
    const { input, output, ...command } = form.command.read();
    const { completed, ...more } = form.more.read();
    Object.assign(draft, { command: form.command.read(), more: form.more.read() });
    const parts = form.parts.map((part) => [part.key, part.fields.read()]);
    draft.payloads[form.type] = form.whole ? parts[0][1] : Object.fromEntries(parts.filter(([, part]) => Object.keys(part).length));
    return JSON.stringify({
      schema_version: "1", ...command, request_type: form.type, input_ref: { uri: input ?? "" }, output_ref: { uri: output ?? "" },
      payload: draft.payloads[form.type], ...more, ...(completed ? { callback_urls: { completed } } : {}),
    }, null, 2);
  }

  function drawForm() {
    const onEdit = planSoon;
    const command = fieldsOf(COMMAND, draft.command, { onEdit });
    const more = fieldsOf(MORE, draft.more, { onEdit });
    const payload = draft.payloads[draft.type] ?? {};
    const steps = protocol?.steps ?? [];
    const whole = steps.length === 1 && !steps[0].payload_key;
    const parts = steps.map((step) => {
      const key = step.payload_key;
      const own = fieldsOf(step.payload_schema, whole ? payload : payload[key], { pointer: whole ? "/payload" : `/payload/${key}`, onEdit });
      return { key, fields: own, step };
    }).filter(({ key }) => whole || key);
    form = { type: draft.type, command, more, parts, whole };
    fields.replaceChildren(...command.shown, ...parts.map(({ fields: own, step }) => el("fieldset", { class: "part" },
      el("legend", {}, `${step.step_type}`), step.payload_schema?.description ? el("p", { class: "quiet small-text" }, withCode(step.payload_schema.description)) : "",
      own.shown.length ? own.shown : el("p", { class: "quiet small-text" }, "Takes nothing."))),
    el("details", { class: "part" }, el("summary", {}, "More"), el("div", { class: "stack-tight" }, more.shown)));
  }

  function draw() {
    fill(ways, [choice("How to write it", [["form", "Form"], ["json", "JSON"]], asJson ? "json" : "form", (wanted) => {
      if (wanted === "json" && !asJson) {
        draft.text = text.value = envelope();
        asJson = true;
      } else if (wanted === "form" && asJson && takeText()) {
        asJson = false;
        draft.text = null;
        drawForm();
      }
      draw();
      planSoon();
    })]);
    written.hidden = !asJson;
    fields.hidden = asJson;
  }

  // Takes what was written as JSON into the form; false if it is none.
  function takeText() {
    let given;
    try {
      given = JSON.parse(text.value);
    } catch {
      refused(new Error("The command is not JSON."));
      return false;
    }
    if (protocolOf(given.request_type)) setType(given.request_type);
    draft.command = { tenant_id: given.tenant_id, input: given.input_ref?.uri, output: given.output_ref?.uri };
    draft.more = { mode: given.mode ?? undefined, doc_id: given.doc_id ?? undefined, idempotency_key: given.idempotency_key ?? undefined,
      correlation_id: given.correlation_id ?? undefined, completed: given.callback_urls?.completed ?? undefined };
    draft.payloads[draft.type] = given.payload ?? {};
    return true;
  }

  const protocolOf = (wanted) => protocols.find((each) => each.request_types.includes(wanted));

  function setType(wanted) {
    draft.type = wanted;
    type.value = wanted;
    protocol = protocolOf(wanted);
  }

  async function pick(wanted) {
    if (form && !asJson) envelope(); // keeps what was written for the type that is left
    setType(wanted);
    if (!draft.payloads[wanted] || !draft.command.input) await example();
    drawForm();
    if (asJson) {
      asJson = false;
      draft.text = text.value = envelope();
      asJson = true;
    }
    draw();
    planSoon();
  }

  // A command that works here: the protocol's own example, or the newest job of this request type that succeeded.
  async function example() {
    const detail = protocol ? await get(`/v1/protocols/${encodeURIComponent(protocol.protocol_id)}`) : {};
    let found = detail.example ?? null;
    source.textContent = found ? "The example reads a sample document of this installation." : "";
    if (!found) {
      const { items } = await get("/v1/jobs", { request_type: draft.type, state: "SUCCEEDED", limit: 1 });
      const [job] = items;
      if (job) {
        const payload = protocol.steps[0].payload_key ? Object.fromEntries(job.steps.map((step, at) => [protocol.steps[at]?.payload_key, step.payload])) : job.steps[0].payload;
        found = { tenant_id: job.tenant_id, input_ref: job.steps[0].input_ref, output_ref: job.steps[0].output_ref, payload };
        fill(source, ["Filled in from ", jobLink(job.jobId), ", the newest job of this type that succeeded."]);
      }
    }
    draft.payloads[draft.type] ??= found?.payload ?? {};
    if (found && !draft.command.input)
      draft.command = { tenant_id: draft.command.tenant_id ?? found.tenant_id, input: found.input_ref.uri, output: found.output_ref.uri };
  }

  // -- what would become of it

  const refused = (error) => fill(verdict, [el("div", { class: "notice", role: "alert" }, el("div", {}, error.message))]);

  function planSoon() {
    const mine = ++planned;
    setTimeout(() => { if (mine === planned && body.isConnected) plan(mine).catch(refused); }, SETTLE_MS);
  }

  async function plan(mine) {
    const sent = envelope();
    try {
      JSON.parse(sent);
    } catch {
      return refused(new Error("The command is not JSON."));
    }
    const found = await call("POST", "/v1/orchestrate:plan", sent);
    if (mine === planned) drawVerdict(found);
  }

  // In the form an address is one field; in the envelope it is a reference.
  const inForm = (each) => ({ ...each, pointer: each.pointer?.replace(/^\/(in|out)put_ref(\/uri)?$/, "/$1put").replace("/callback_urls/completed", "/completed") });

  function drawVerdict(found) {
    let left = found.problems.map(inForm);
    if (!asJson) for (const each of [form.command, form.more, ...form.parts.map(({ fields: own }) => own)]) left = each.problems(left);
    const { limits } = found;
    fill(verdict, [
      el("div", { "data-key": "said" }, tag(found.accepted ? "Would be accepted" : "Would be refused", found.accepted ? "ok" : "bad")),
      found.duplicate_of ? el("p", { "data-key": "twice" }, "The same command was sent before: it would be answered with ", jobLink(found.duplicate_of), ".") : "",
      el("ul", { class: "problems", "data-key": "problems" }, (asJson ? found.problems : left).map((each) => el("li", {}, each.pointer ? el("code", {}, each.pointer) : "", each.pointer ? " " : "", each.message))),
      limits && !limits.taken_now ? el("div", { class: "notice warn", "data-key": "full" }, el("div", {}, `There is no room for it now${limits.retry_after_seconds ? `; try again in ${limits.retry_after_seconds} s` : ""}.`)) : "",
      found.steps.length ? el("div", { "data-key": `steps ${found.protocol_id}` }, el("h3", {}, "Steps")) : "",
      found.steps.length ? stepsOf(found) : "",
      el("div", { "data-key": "facts" }, facts([
        ["Protocol", found.protocol_id], ["Lane", found.lane], ["Mode", found.mode && `${found.mode}, by ${found.decision_source}`],
        ["Tenant in flight", limits && `${count(limits.tenant.in_flight)} of ${count(limits.tenant.max)}`]])),
    ]);
  }

  let drawn = { protocol: null, node: null };
  function stepsOf(found) {
    if (drawn.protocol !== found.protocol_id) drawn = { protocol: found.protocol_id, node: el("div", { "data-key": `drawn ${found.protocol_id}` }, drawing(found.steps)) };
    return drawn.node;
  }

  async function submit() {
    const accepted = await call("POST", "/v1/orchestrate", envelope());
    draft.more = { ...draft.more, idempotency_key: newKey() };
    location.hash = `#/jobs/${encodeURIComponent(accepted.jobId)}`;
  }

  const key = session.auth === "required" ? " -H \"Authorization: Bearer $LUCIUS_API_KEY\"" : "";
  const asCurl = () => `curl -s${key} -H 'Content-Type: application/json' -d '${envelope().replaceAll("'", "'\\''")}' ${location.origin}/v1/orchestrate`;

  const body = el("div", { class: "columns playground" },
    panel("Command", el("div", { class: "stack-tight" }, el("label", { class: "field" }, el("span", {}, "Request type"), type), source, fields, written), { aside: ways }),
    panel("What would become of it", el("div", { class: "stack-tight" }, verdict,
      el("div", { class: "buttons" }, button("Submit", submit, { kind: "main", onFault: refused }), copyButton(asCurl, "as curl", "curl")))));

  async function refresh() {
    // A key that may submit only does so without the form, which the protocols make.
    protocols = may("read") ? (await get("/v1/protocols")).items : [];
    const names = protocols.map((each) => each.request_types[0]);
    type.replaceChildren(...names.map((each) => el("option", { value: each }, each)));
    if (!names.length) {
      asJson = true;
      type.closest("label").hidden = true;
      ways.hidden = true;
      text.value = draft.text ??= JSON.stringify({ schema_version: "1", tenant_id: "", request_type: "", input_ref: { uri: "" }, output_ref: { uri: "" }, payload: {} }, null, 2);
      form = null;
      draw();
      return planSoon();
    }
    const wanted = query.get("type");
    if (wanted && wanted !== draft.type) draft.text = null;
    asJson = draft.text !== null;
    if (asJson) text.value = draft.text;
    const first = names.includes("OCR_EMBEDDING_SIS") ? "OCR_EMBEDDING_SIS" : names[0];
    setType([wanted, draft.type].find((each) => protocolOf(each)) ?? first);
    if (!asJson) return pick(draft.type);
    drawForm();
    draw();
    planSoon();
  }

  return { title: "Playground", body, refresh };
}
