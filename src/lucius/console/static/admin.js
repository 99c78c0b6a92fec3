// Webhooks that were given up, and API keys.

import { call, get, many, post } from "/console/api.js";
import { el, fill } from "/console/dom.js";
import { ago } from "/console/time.js";
import { button, confirmed, copyButton, empty, jobLink, name, panel, table, tag, toast } from "/console/ui.js";

const PAGE = 50;
const EVERY_MS = 10000;
const ROLES = [["read", "see jobs, services and figures"], ["submit", "send commands"], ["control", "cancel, pause, resume, run again"],
  ["work", "lease directives, as a worker"], ["admin", "failed jobs, webhooks, keys, late results"]];

export function webhooksPage() {
  let wanted = PAGE;
  const list = el("div");
  const heads = ["Job", "Tenant", { text: "Address", class: "words" }, { text: "Tries", class: "num" }, { text: "Last problem", class: "words" }, { text: "Given up", class: "tight" }, { text: "What to do", hidden: true }];

  async function redeliver(each) {
    await call("POST", `/v1/admin/webhooks/${encodeURIComponent(each.jobId)}:redeliver`);
    toast("The webhook is sent again.");
    await refresh();
  }

  async function refresh() {
    const { items, more } = await many("/v1/admin/webhooks/dead", {}, wanted, Math.ceil(wanted / PAGE));
    const rows = items.map((each) => ({ key: each.jobId, cells: [jobLink(each.jobId), name(each.tenant_id), el("span", { class: "id-words" }, each.url), each.attempts,
      each.last_problem ?? "", ago(each.dead_at), button("Send again", () => redeliver(each), { kind: "small", key: `send ${each.jobId}` })] }));
    fill(list, [rows.length ? table("Webhooks that were given up", heads, rows)
      : empty({ title: "No webhook was given up.", text: "A webhook tells a client that its job has ended. One that cannot be delivered for hours comes here. A command asks for one with the member callback_urls.completed." }),
    more ? el("div", { class: "more" }, button("More", () => { wanted += PAGE; return refresh(); })) : ""]);
  }

  return { title: "Webhooks", body: list, refresh, every: EVERY_MS };
}

const names = (text) => text.split(/[\s,]+/).filter(Boolean);

export function keysPage() {
  const list = el("div");
  const made = el("div", { "aria-live": "polite" });
  const heads = ["Name", "Roles", { text: "Tenants", class: "words" }, { text: "Services", class: "words" }, { text: "Made", class: "tight" }, "State", { text: "What to do", hidden: true }];

  const field = (words, key, help, value) => el("label", { class: "field" }, el("span", {}, words), el("input", { name: key, value, autocomplete: "off", spellcheck: "false" }), el("span", { class: "help" }, help));
  const form = el("form", { class: "stack-tight" },
    el("div", { class: "filters" }, field("Name", "name", "whose key it is"), field("Tenants", "tenants", "names, or * for all", "*"), field("Services", "services", "for the role work", "")),
    el("fieldset", { class: "checks" }, el("legend", {}, "Roles"), ROLES.map(([role, words]) =>
      el("label", {}, el("input", { type: "checkbox", name: "role", value: role, checked: role === "read" }), el("span", {}, el("strong", {}, role), ` ${words}`)))),
    el("div", { class: "buttons" }, button("Make the key", make, { kind: "main" })), made);
  form.addEventListener("submit", (event) => event.preventDefault());

  async function make() {
    const given = new FormData(form);
    const key = await post("/v1/admin/keys", { name: given.get("name").trim(), roles: given.getAll("role"), tenants: names(given.get("tenants")), services: names(given.get("services")) });
    made.replaceChildren(el("div", { class: "notice warn" }, el("div", { class: "stack-tight" }, el("p", {}, `The key of ${key.name}. It is shown this once: copy it now.`),
      el("div", { class: "command" }, el("code", {}, key.key), copyButton(key.key, "the key")))));
    form.reset();
    await refresh();
  }

  async function revoke(each) {
    const sure = await confirmed({ title: `Revoke the key of ${each.name}?`, words: "Revoke", danger: true, body: [el("p", {}, "Calls with it are refused from now on. A key that was revoked stays revoked.")] });
    if (!sure) return;
    await call("POST", `/v1/admin/keys/${encodeURIComponent(each.keyId)}:revoke`);
    await refresh();
  }

  async function refresh() {
    const { items } = await get("/v1/admin/keys");
    const rows = items.map((each) => ({ key: each.keyId, cells: [[el("strong", {}, name(each.name)), el("span", { class: "sub id" }, each.keyId)],
      el("span", { class: "tags" }, each.roles.map((role) => el("span", { class: "badge plain" }, role))), each.tenants.join(", "), each.services.join(", "), ago(each.created_at),
      each.revoked_at ? tag("Revoked", "idle") : tag("In use", "ok"), each.revoked_at ? "" : button("Revoke", () => revoke(each), { kind: "small danger", key: `revoke ${each.keyId}` })] }));
    fill(list, [rows.length ? table("Keys", heads, rows) : empty({ title: "No key was made yet.", text: "A key says who calls, what they may do, and for which tenants. From a terminal:", command: "lucius keys create NAME --role read --tenant acme" })]);
  }

  return { title: "Keys", body: el("div", { class: "stack" }, panel("Make a key", form), list), refresh, every: EVERY_MS };
}
