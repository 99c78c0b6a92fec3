// Asks for a key where Lucius asks for one.

import { useKey } from "/console/api.js";
import { el } from "/console/dom.js";
import { beginLogin, hostOf } from "/console/oidc.js";
import { button } from "/console/ui.js";

export function loginPage(role, { oidc }, done) {
  const provider = oidc?.client_id ? hostOf(oidc.issuer) : "";
  const key = el("input", { id: "key", name: "key", type: "password", autocomplete: "off", spellcheck: "false", "aria-describedby": "key-help key-problem" });
  const problem = el("p", { id: "key-problem", class: "problem", role: "alert" });
  const trouble = el("p", { class: "problem", role: "alert" });
  const there = () => beginLogin(oidc);
  const form = el("form", { class: "login stack" },
    el("p", { class: "quiet" }, `This installation asks who is there. The page that you opened needs the role ${role}.`),
    provider ? el("div", { class: "field" }, el("div", { class: "buttons" },
      button(`Log in at ${provider}`, there, { kind: "main", onFault: (error) => { trouble.textContent = error.message; } })), trouble) : "",
    provider ? el("p", { class: "or quiet small-text" }, "or with a key") : "",
    el("div", { class: "field" }, el("label", { for: "key" }, "API key"), key,
      el("p", { id: "key-help", class: "help" }, `${oidc ? `Or a token of ${hostOf(oidc.issuer)}. ` : ""}It is kept in this tab only, until the tab is closed.`), problem),
    el("div", { class: "buttons" }, el("button", { class: `button ${provider ? "" : "main"}` }, "Log in")),
    el("p", { class: "quiet small-text" }, "No key? An administrator makes one: ", el("code", {}, `lucius keys create NAME --role ${role}`)));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const typed = key.value.trim();
    key.value = "";
    if (!/^[\x21-\x7e]+$/.test(typed)) {
      problem.textContent = typed ? "This is no key: it has characters that keys do not have." : "Type in a key.";
      key.focus();
      return;
    }
    useKey(typed);
    done();
  });
  return { title: "Log in", body: form };
}
