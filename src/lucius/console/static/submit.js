// A command to send, and what would become of it.

import { call, get } from "/console/api.js";
import { action, el, fill } from "/console/dom.js";

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

export function submitView() {
  const types = el("datalist", { id: "types" });
  const type = el("input", { list: "types", "aria-label": "Request type" });
  const text = el("textarea", { rows: 18, spellcheck: "false", "aria-label": "Command", oninput: () => write(text.value) });
  const answer = el("pre", { "aria-live": "polite" });

  function write(command) {
    draft = command;
    if (text.value !== command) text.value = command;
    type.value = parsed(command)?.request_type ?? "";
  }

  type.onchange = () => {
    const command = parsed(text.value);
    if (command) write(JSON.stringify({ ...command, request_type: type.value }, null, 2));
    else answer.textContent = "The command is not JSON.";
  };
  write(draft);

  const plan = async () => {
    answer.textContent = JSON.stringify(await call("POST", "/v1/orchestrate:plan", text.value), null, 2);
  };
  const submit = async () => {
    const accepted = await call("POST", "/v1/orchestrate", text.value);
    location.hash = `#/jobs/${encodeURIComponent(accepted.jobId)}`;
  };

  const shown = el("section", {}, el("h1", {}, "Submit a command"), el("p", {}, type, types), text,
    el("div", { class: "controls" }, action("Plan", plan), action("Submit", submit)), answer);

  async function refresh() {
    if (types.children.length) return;
    try {
      const page = await get("/v1/protocols");
      fill(types, page.items.flatMap((protocol) => protocol.request_types).map((value) => el("option", { value })));
    } catch (error) {
      if (error.status !== 403) throw error; // a key that may only submit does so without suggestions
    }
  }

  return { shown, refresh, everyMs: 60000, role: "submit" };
}
