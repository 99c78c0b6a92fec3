// Protocols, drawn, with the policies and the schemas of their steps.

import { get } from "/console/api.js";
import { el, fill, svg } from "/console/dom.js";
import { may } from "/console/session.js";
import { duration } from "/console/time.js";
import { empty, facts, icon, json, panel } from "/console/ui.js";

const BOX = { width: 168, height: 56, gap: 48, down: 34 };
const NAME_MAX = 19;
const PAD = 2;

const short = (text) => (text.length > NAME_MAX ? `${text.slice(0, NAME_MAX - 1)}…` : text);

// The steps in a row, or one below the other where the row has no room.
export function drawing(steps) {
  const words = `Steps: ${steps.map((step) => `${step.step_type} by ${step.service}`).join(", then ")}`;
  const canvas = svg("svg", { class: "drawn", role: "img", "aria-label": words });
  const node = el("div", {}, canvas);
  const draw = (room) => {
    const across = steps.length * BOX.width + (steps.length - 1) * BOX.gap + 2 * PAD;
    const row = across <= room;
    const [stepX, stepY] = row ? [BOX.width + BOX.gap, 0] : [0, BOX.height + BOX.down];
    const width = row ? across : BOX.width + 2 * PAD;
    const height = (row ? BOX.height : steps.length * stepY - BOX.down) + 2 * PAD;
    for (const [key, value] of Object.entries({ viewBox: `0 0 ${width} ${height}`, width, height })) canvas.setAttribute(key, value);
    fill(canvas, steps.map((step, at) => {
      const [x, y] = [PAD + at * stepX, PAD + at * stepY];
      const arrow = row
        ? `M${x - BOX.gap + 4} ${y + BOX.height / 2}H${x - 6}m-5 -4 5 4 -5 4`
        : `M${x + BOX.width / 2} ${y - BOX.down + 4}V${y - 6}m-4 -5 4 5 4 -5`;
      return svg("g", { "data-key": at }, at ? svg("path", { class: "arrow", d: arrow }) : "",
        svg("rect", { x, y, width: BOX.width, height: BOX.height, rx: 8 }),
        svg("text", { x: x + 14, y: y + 24, class: "step-type" }, short(step.step_type)),
        svg("text", { x: x + 14, y: y + 42, class: "step-service" }, short(step.service)));
    }));
  };
  new ResizeObserver(([{ contentRect }]) => draw(contentRect.width)).observe(node);
  return node;
}

const seconds = (many) => duration(1000 * many).replace(".00", "");

function stepPanel(step, at) {
  const backoff = Object.entries(step.backoff_seconds).map(([why, waits]) => `${why}: ${waits.map(seconds).join(", ")}`).join("; ");
  return panel(`${at + 1}. ${step.step_type}`, el("div", { class: "stack-tight" }, facts([
    ["Service", step.service], ["Part of the payload", step.payload_key ? el("code", {}, step.payload_key) : "all of it"], ["Attempts", step.max_attempts],
    ["ACK within", seconds(step.ack_timeout_seconds)], ["Lease", seconds(step.lease_seconds)], ["At most", seconds(step.max_duration_seconds)],
    ["Waits before a retry", backoff, "wide"], ["When paused", step.stop_on_pause ? "its worker is told to stop" : "it ends first"]]),
  el("details", {}, el("summary", {}, "Schema of its payload"), json(step.payload_schema ?? {}, "the schema")),
  Object.keys(step.defaults ?? {}).length ? el("details", {}, el("summary", {}, "Defaults"), json(step.defaults, "the defaults")) : ""), { key: at });
}

const types = (protocol) => el("span", { class: "tags" }, protocol.request_types.map((each) => el("span", { class: "badge plain" }, each)));

const tryIt = (protocol) => (may("submit")
  ? el("a", { class: "button small", href: `#/playground?${new URLSearchParams({ type: protocol.request_types[0] })}` }, "Try it") : "");

export function protocolsPage() {
  const body = el("div", { class: "stack" });
  async function refresh() {
    const { items, problems } = await get("/v1/protocols");
    body.replaceChildren(...problems.map((each) => el("div", { class: "notice" }, icon("error"), el("div", {}, `A protocol document was refused: ${each}`))), ...(items.length
      ? items.map((each) => panel(el("a", { href: `#/protocols/${encodeURIComponent(each.protocol_id)}` }, each.protocol_id),
        el("div", { class: "stack-tight" }, drawing(each.steps), types(each)), { aside: tryIt(each) }))
      : [empty({ title: "No protocol is installed.", text: "A protocol says which steps a request type takes.", command: "lucius protocols --help" })]));
  }
  return { title: "Protocols", body, refresh };
}

export function protocolPage(protocolId) {
  const body = el("div", { class: "stack" });
  async function refresh() {
    const found = await get(`/v1/protocols/${encodeURIComponent(protocolId)}`);
    body.replaceChildren(panel("", el("div", { class: "stack-tight" }, drawing(found.steps), types(found), el("div", {}, tryIt(found)))),
      ...found.steps.map(stepPanel), panel("", el("details", {}, el("summary", {}, "The protocol as JSON"), json(found, "the protocol as JSON"))));
  }
  return { title: protocolId, crumb: el("a", { href: "#/protocols" }, "Protocols"), body, refresh };
}
