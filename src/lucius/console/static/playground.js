// A command to send, and what would become of it.

import { call, get } from "/console/api.js";
import { el, fill } from "/console/dom.js";
import { button, json, panel, tag } from "/console/ui.js";

const EXAMPLE = {
  schema_version: "1",
  tenant_id: "acme",
  request_type: "OCR_EMBEDDING_SIS",
  input_ref: { uri: "https://example.com/letter.pdf" },
  output_ref: { uri: "https://example.com/letter" },
  payload: { sis: { prompt: "What is it about?" } },
};

let draft = JSON.stringify(EXAMPLE, null, 2); // survives a look at another page, and the typing in of a key

function parsed(command) {
  try {
    return JSON.parse(command);
  } catch {
    return null;
  }
}

export function playgroundPage() {
  const types = el("datalist", { id: "types" });
  const type = el("input", { list: "types" });
  const text = el("textarea", { class: "code", rows: 18, spellcheck: "false", oninput: () => write(text.value) });
  const answer = el("div", { "aria-live": "polite" });

  function write(command) {
    draft = command;
    if (text.value !== command) text.value = command;
    type.value = parsed(command)?.request_type ?? "";
  }

  type.onchange = () => {
    const command = parsed(text.value);
    if (command) write(JSON.stringify({ ...command, request_type: type.value }, null, 2));
    else refused(new Error("The command is not JSON."));
  };
  write(draft);

  const refused = (error) => fill(answer, [el("div", { class: "notice", role: "alert" }, el("div", {}, error.message))]);

  const plan = async () => {
    const found = await call("POST", "/v1/orchestrate:plan", text.value);
    fill(answer, [tag(found.accepted ? "Would be accepted" : "Would be refused", found.accepted ? "ok" : "bad"), json(found, "the plan")]);
  };
  const submit = async () => {
    const accepted = await call("POST", "/v1/orchestrate", text.value);
    location.hash = `#/jobs/${encodeURIComponent(accepted.jobId)}`;
  };

  const body = el("div", { class: "columns" },
    panel("Command", el("div", { class: "stack-tight" }, el("label", { class: "field" }, el("span", {}, "Request type"), type), types,
      el("label", { class: "field" }, el("span", {}, "Envelope"), text),
      el("div", { class: "buttons" }, button("Submit", submit, { kind: "main", onFault: refused }), button("Plan", plan, { onFault: refused })))),
    panel("What would become of it", answer));

  async function refresh() {
    try {
      const page = await get("/v1/protocols");
      fill(types, page.items.flatMap((protocol) => protocol.request_types).map((value) => el("option", { value })));
    } catch (error) {
      if (error.status !== 403) throw error; // a key that may only submit does so without suggestions
    }
  }

  return { title: "Playground", body, refresh };
}
