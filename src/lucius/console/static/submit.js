// A command to send, and what would become of it.

import { call, get } from "/console/api.js";
import { el } from "/console/dom.js";

const EXAMPLE = {
  tenant_id: "acme",
  request_type: "OCR_EMBEDDING_SIS",
  input_ref: { uri: "https://example.com/letter.pdf" },
  output_ref: { uri: "https://example.com/letter" },
  payload: { sis: { prompt: "What is it about?" } },
};

export function submitView() {
  const types = el("datalist", { id: "types" });
  const type = el("input", { list: "types", "aria-label": "Request type", value: EXAMPLE.request_type });
  const text = el("textarea", { rows: 18, spellcheck: "false", "aria-label": "Command" });
  text.value = JSON.stringify(EXAMPLE, null, 2);
  const answer = el("pre", { "aria-live": "polite" });

  type.addEventListener("change", () => {
    try {
      text.value = JSON.stringify({ ...JSON.parse(text.value), request_type: type.value }, null, 2);
    } catch {
      answer.textContent = "The command is not JSON.";
    }
  });

  const plan = async () => {
    answer.textContent = JSON.stringify(await call("POST", "/v1/orchestrate:plan", text.value), null, 2);
  };
  const submit = async () => {
    const accepted = await call("POST", "/v1/orchestrate", text.value);
    location.hash = `#/jobs/${encodeURIComponent(accepted.jobId)}`;
  };

  const shown = el("section", {}, el("h1", {}, "Submit a command"), el("p", {}, type, types), text,
    el("div", { class: "controls" }, el("button", { onclick: plan }, "Plan"), el("button", { onclick: submit }, "Submit")), answer);

  async function refresh() {
    if (types.children.length) return;
    const page = await get("/v1/protocols");
    types.replaceChildren(...page.items.flatMap((protocol) => protocol.request_types).map((value) => el("option", { value })));
  }

  return { shown, refresh, everyMs: 60000 };
}
