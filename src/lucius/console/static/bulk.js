// One action for many jobs: first what it would do, then, once confirmed, what it did.

import { post } from "/console/api.js";
import { el } from "/console/dom.js";
import { may } from "/console/session.js";
import { button, confirmed, counted, jobLink, toast } from "/console/ui.js";

const IDS_MAX = 1000;
const UNDO_MS = 15000;
const REFUSALS_SHOWN = 5;

export const ACTIONS = {
  pause: { words: "Pause", past: "paused", undo: "resume", text: "No further attempt begins until they are resumed. It can be undone." },
  resume: { words: "Resume", past: "resumed", undo: "pause", text: "They go on where they stopped." },
  cancel: { words: "Cancel", past: "cancelled", danger: true, text: "They end without a result. A cancel cannot be taken back." },
  rerun: { words: "Run again", past: "run again", text: "For each a new job is made; the old ones stay as they are." },
  redrive: { words: "Run again", past: "run again", text: "For each a new job begins at the step that failed." },
};

// `target`: `{ job_ids }` or `{ filter }`. Asks page after page, and adds up.
async function act(action, target, dryRun) {
  const sum = { matched: 0, affected: 0, refused_count: 0, refused: [] };
  const add = (found) => {
    for (const key of ["matched", "affected", "refused_count"]) sum[key] += found[key];
    sum.refused.push(...found.refused);
  };
  if (target.job_ids)
    for (let at = 0; at < target.job_ids.length; at += IDS_MAX)
      add(await post("/v1/jobs:bulk", { action, job_ids: target.job_ids.slice(at, at + IDS_MAX), dry_run: dryRun }));
  else
    for (let cursor = null, page = null; page === null || cursor; ) {
      page = await post("/v1/jobs:bulk", { action, filter: target.filter, dry_run: dryRun, ...(cursor ? { cursor } : {}) });
      add(page);
      cursor = page.next_cursor;
    }
  return sum;
}

const refusals = ({ refused, refused_count: many }) => (many ? [
  el("p", {}, `${counted(many, "job")} would refuse:`),
  el("ul", {}, refused.slice(0, REFUSALS_SHOWN).map(({ job_id: id, message }) => el("li", {}, jobLink(id), ` ${message}`)),
    many > REFUSALS_SHOWN ? el("li", {}, `and ${counted(many - REFUSALS_SHOWN, "other")}`) : "")] : "");

// Resolves to whether it was done.
export async function bulk(action, target, whose) {
  const { words, past, undo, text, danger } = ACTIONS[action];
  const would = await act(action, target, true);
  if (!would.affected) {
    await confirmed({ title: `${words}: nothing to do`, words: "Close", body: [el("p", {}, `Of ${counted(would.matched, "job")} ${whose}, none would change.`), refusals(would)] });
    return false;
  }
  const many = counted(would.affected, "job");
  const doing = words === "Run again" ? `Run ${many} again` : `${words} ${many}`;
  const sure = await confirmed({ title: `${doing}?`, words: doing, danger,
    body: [el("p", {}, `${counted(would.matched, "job")} ${whose}; ${counted(would.affected, "job")} would change. ${text}`), refusals(would)] });
  if (!sure) return false;
  const did = await act(action, target, false);
  const refused = new Set(did.refused.map(({ job_id: id }) => id));
  const back = undo && target.job_ids ? { job_ids: target.job_ids.filter((id) => !refused.has(id)) } : null;
  toast(`${counted(did.affected, "job")} ${past}${did.refused_count ? `, ${did.refused_count} refused` : ""}.`, {
    ms: UNDO_MS, undo: back && (async () => { const undone = await act(undo, back, false); toast(`${counted(undone.affected, "job")} ${ACTIONS[undo].past}.`); }) });
  return true;
}

export const mayBulk = (action) => may("control") && (action !== "redrive" || may("admin"));

// The jobs that were chosen in a list, and what can be done with them.
export function selection({ onChange, actions }) {
  const chosen = new Set();
  const bar = el("div", { class: "bulk-bar", role: "region", "aria-label": "Chosen jobs", hidden: true });

  function draw() {
    bar.hidden = !chosen.size;
    bar.replaceChildren(el("strong", { "aria-live": "polite" }, `${counted(chosen.size, "job")} chosen`),
      ...actions.filter(mayBulk).map((action) => button(ACTIONS[action].words, async () => {
        if (await bulk(action, { job_ids: [...chosen] }, "are chosen")) clear();
      }, { kind: ACTIONS[action].danger ? "small danger" : "small", key: action })),
      button("Choose none", clear, { kind: "small" }));
  }

  function clear() {
    chosen.clear();
    draw();
    onChange();
  }

  const box = (jobId) => el("input", { type: "checkbox", "aria-label": `Choose ${jobId}`, checked: chosen.has(jobId), onchange: ({ currentTarget }) => {
    if (currentTarget.checked) chosen.add(jobId);
    else chosen.delete(jobId);
    draw();
  } });

  const all = (jobIds) => el("input", { type: "checkbox", "aria-label": "Choose all that are shown", onchange: ({ currentTarget }) => {
    for (const id of jobIds) if (currentTarget.checked) chosen.add(id); else chosen.delete(id);
    draw();
    onChange();
  } });

  return { bar, box, all, has: (jobId) => chosen.has(jobId) };
}
