// What a job read and wrote: its names, and one of them at a time, to be looked at.

import { get, jobPath, read, withQuery } from "/console/api.js";
import { el, fill } from "/console/dom.js";
import { button, copyButton, counted, json, name } from "/console/ui.js";

const size = (bytes) => (bytes < 1024 ? counted(bytes, "byte") : bytes < 1048576 ? `${Math.round(bytes / 1024)} KiB` : `${(bytes / 1048576).toFixed(1)} MiB`);

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

// A text is shown as text, a picture as a picture: what an artifact says is never part of the page.
export function artifactPanel(jobId) {
  const list = el("ul", { class: "lines" });
  const shown = el("div", { class: "stack-tight", "aria-live": "polite" });
  let open = null; // the address that is shown
  let drawn = null; // the address of the picture in the browser's memory

  const node = el("details", { "data-key": "artifacts" }, el("summary", {}, "What it read and wrote"), el("div", { class: "stack-tight artifacts" }, list, shown));
  node.addEventListener("toggle", () => { if (node.open) names().catch(said); });

  function said(error) {
    fill(shown, [el("p", { class: "quiet" }, error.message)]);
  }

  function forget() {
    if (drawn) URL.revokeObjectURL(drawn);
    drawn = null;
  }

  async function names() {
    const { items, more } = await get(`${jobPath(jobId)}/artifacts`);
    fill(list, [items.map((each) => el("li", { "data-key": each.uri, class: each.uri === open ? "open" : null },
      el("span", { class: "artifact-name" }, name(each.name), el("span", { class: "quiet small-text" }, each.what)),
      el("span", { class: "buttons" }, copyButton(each.uri, "the address"), button("Show", () => show(each, 1), { kind: "small", label: `Show ${each.name}`, key: `show ${each.uri}` })))),
    more ? el("li", { "data-key": "more" }, "There are more than these.") : "",
    items.length ? "" : el("li", { "data-key": "none" }, "Nothing is in its workspace yet.")]);
  }

  async function show(artifact, page) {
    const answer = await read(withQuery(`${jobPath(jobId)}/artifacts:preview`, { uri: artifact.uri, page }));
    const bytes = Number(answer.headers.get("Lucius-Artifact-Bytes"));
    const pages = Number(answer.headers.get("Lucius-Artifact-Pages"));
    const cut = answer.headers.has("Lucius-Artifact-Cut");
    const content = answer.headers.get("Content-Type").startsWith("text/") ? json(pretty(await answer.text()), artifact.name) : await picture(answer, artifact);
    open = artifact.uri;
    const turn = (words, to) => button(words, () => show(artifact, to), { kind: "small", disabled: to < 1 || to > pages });
    shown.replaceChildren(el("div", { class: "panel-head" }, el("h3", {}, name(artifact.name)),
      el("span", { class: "buttons" }, el("span", { class: "quiet small-text" }, `${size(bytes)}${cut ? ", its beginning" : ""}${pages ? `, page ${page} of ${pages}` : ""}`),
        pages > 1 ? [turn("Page before", page - 1), turn("Next page", page + 1)] : "", button("Hide", hide, { kind: "small" }))), content);
    await names();
  }

  async function picture(answer, artifact) {
    forget();
    drawn = URL.createObjectURL(await answer.blob());
    return el("img", { class: "artifact", src: drawn, alt: artifact.name });
  }

  function hide() {
    forget();
    open = null;
    shown.replaceChildren();
    return names();
  }

  return { node, stop: forget };
}
