// Charts in SVG, drawn for the width that they have.

import { el, fill, svg } from "/console/dom.js";
import { dayMinute, duration, fullTime, minuteTime } from "/console/time.js";
import { count } from "/console/ui.js";

const AXIS_LEFT = 46;
const AXIS_BOTTOM = 20;
const TOP = 8;
const RIGHT = 4;
const TICK_MINUTES = [1, 2, 5, 10, 15, 30, 60, 120, 180, 240, 360, 720, 1440];

// A step of an axis that people count in: 1, 2, 5, 10, 15, 20 …
function niceStep(max, lines, whole) {
  const rough = max / lines;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 1.5, 2, 2.5, 3, 4, 5, 10].map((each) => each * power).find((each) => each >= rough && (!whole || Number.isInteger(each)));
}

function responsive(height, draw, label) {
  const canvas = svg("svg", { class: "chart", height, role: "img", "aria-label": label });
  const told = el("div", { class: "chart-note", hidden: true });
  const node = el("div", { class: "chart-box" }, canvas, told);
  let data = null;
  let width = 0;
  const redraw = () => {
    if (!data || !width) return;
    canvas.setAttribute("viewBox", `0 0 ${width} ${height}`);
    draw(canvas, told, data, width, height);
  };
  new ResizeObserver(([{ contentRect }]) => {
    if (Math.round(contentRect.width) === width) return;
    width = Math.round(contentRect.width);
    redraw();
  }).observe(node);
  return { node, update: (fresh) => { data = fresh; redraw(); } };
}

// Lines across, with their figures.
function grid(max, width, height, words, whole) {
  const plain = Math.max(max, whole ? 4 : 1);
  const step = niceStep(plain, 4, whole);
  const top = Math.ceil(plain / step) * step;
  const y = (value) => TOP + (height - TOP - AXIS_BOTTOM) * (1 - value / top);
  const lines = [];
  for (let at = 0; at <= top + step / 2; at += step)
    lines.push(
      svg("line", { class: at === 0 ? "axis" : "grid", x1: AXIS_LEFT, x2: width - RIGHT, y1: y(at), y2: y(at) }),
      svg("text", { class: "tick", x: AXIS_LEFT - 8, y: y(at) + 4, "text-anchor": "end" }, words(at)));
  return { y, lines };
}

function timeTicks(data, width, height, x) {
  const many = Math.max(2, Math.min(7, Math.floor(width / 90)));
  const stepMinutes = data.stepMs / 60000;
  const every = TICK_MINUTES.find((each) => each * many >= data.steps * stepMinutes);
  const first = dayMinute(data.startsAt);
  const ticks = [];
  for (let at = 0; at < data.steps; at += 1) {
    const minute = first + at * stepMinutes;
    if (minute % every === 0 && x(at) < width - RIGHT - 16)
      ticks.push(svg("text", { class: "tick", x: Math.max(x(at), AXIS_LEFT + 14), y: height - 4, "text-anchor": "middle" }, minuteTime(data.startsAt + at * data.stepMs)));
  }
  return ticks;
}

// What is under the pointer, in words beside it.
function pointer(canvas, told, data, width, x, lines) {
  canvas.onpointermove = ({ clientX }) => {
    const box = canvas.getBoundingClientRect();
    const at = Math.max(0, Math.min(data.steps - 1,
      Math.floor((clientX - box.left - AXIS_LEFT) / (width - AXIS_LEFT - RIGHT) * data.steps)));
    fill(told, [el("strong", {}, fullTime(data.startsAt + at * data.stepMs)), lines(at)]);
    told.hidden = false;
    told.classList.toggle("left", x(at) > width / 2);
    const mark = canvas.querySelector(".mark");
    mark.setAttribute("x", x(at));
    mark.setAttribute("opacity", 1);
  };
  canvas.onpointerleave = () => {
    told.hidden = true;
    canvas.querySelector(".mark")?.setAttribute("opacity", 0);
  };
}

const noteLine = (kind, words, value) =>
  el("span", { class: "note-line" }, el("i", { class: `key ${kind}` }), words, el("b", {}, value));

// Jobs that ended in each step of time, stacked; and those that were accepted, as a line.
export function jobsChart(label) {
  const KINDS = [["succeeded", "ok"], ["cancelled", "idle"], ["failed", "bad"]];
  return responsive(220, (canvas, told, data, width, height) => {
    const sums = data.series.accepted.map((_, at) => KINDS.reduce((sum, [kind]) => sum + data.series[kind][at], 0));
    const { y, lines } = grid(Math.max(...sums, ...data.series.accepted), width, height, count, true);
    const slot = (width - AXIS_LEFT - RIGHT) / data.steps;
    const x = (at) => AXIS_LEFT + at * slot;
    const gap = slot > 6 ? 2 : slot > 3 ? 1 : 0;
    const bars = [];
    for (let at = 0; at < data.steps; at += 1) {
      let below = 0;
      for (const [kind, tone] of KINDS) {
        const value = data.series[kind][at];
        if (value)
          bars.push(svg("rect", { class: `bar ${tone}`, x: x(at) + gap / 2, width: Math.max(1, slot - gap), y: y(below + value), height: y(below) - y(below + value) }));
        below += value;
      }
    }
    // Steps as wide as the bars are, so that both count the same span; no line where nothing came.
    const path = data.series.accepted.map((value, at, all) => (value ? `${all[at - 1] ? "" : `M${x(at).toFixed(1)} ${y(0)}`}V${y(value).toFixed(1)}H${x(at + 1).toFixed(1)}${all[at + 1] ? "" : `V${y(0)}`}` : "")).join("");
    const mark = svg("rect", { class: "mark", opacity: 0, width: Math.max(1, slot), y: TOP, height: height - TOP - AXIS_BOTTOM });
    fill(canvas, [lines, mark, bars, svg("path", { class: "line accepted", d: path }), timeTicks(data, width, height, x)]);
    pointer(canvas, told, data, width, x, (at) => [
      noteLine("accepted", "accepted", count(data.series.accepted[at])),
      KINDS.map(([kind, tone]) => noteLine(tone, kind, count(data.series[kind][at]))),
    ]);
  }, label);
}

// Half and 99 of 100 were at most so slow.
export function latencyChart(label) {
  return responsive(130, (canvas, told, data, width, height) => {
    const known = [...data.p50, ...data.p99].filter((value) => value !== null);
    const { y, lines } = grid(Math.max(1, ...known), width, height, (at) => duration(at).replace(/\.00 s|(\.\d)0 s/, "$1 s"), false);
    const slot = (width - AXIS_LEFT - RIGHT) / data.steps;
    const x = (at) => AXIS_LEFT + at * slot;
    const none = (values, at) => (values[at] ?? null) === null;
    const path = (values) => values.map((value, at) => (value === null ? "" :
      `${none(values, at - 1) ? "M" : "L"}${(x(at) + slot / 2).toFixed(1)} ${y(value).toFixed(1)}`)).join("");
    const alone = (values, kind) => values.map((value, at) => (value !== null && none(values, at - 1) && none(values, at + 1)
      ? svg("circle", { class: `dot ${kind}`, cx: x(at) + slot / 2, cy: y(value), r: 2.5 }) : ""));
    const mark = svg("rect", { class: "mark", opacity: 0, width: Math.max(1, slot), y: TOP, height: height - TOP - AXIS_BOTTOM });
    fill(canvas, [lines, mark, svg("path", { class: "line p99", d: path(data.p99) }), svg("path", { class: "line p50", d: path(data.p50) }), alone(data.p99, "p99"), alone(data.p50, "p50"), timeTicks(data, width, height, x)]);
    const words = (value) => (value === null ? "none" : duration(value));
    pointer(canvas, told, data, width, x, (at) => [
      noteLine("p50", "p50", words(data.p50[at])), noteLine("p99", "p99", words(data.p99[at]))]);
  }, label);
}

export const legend = (entries) => el("p", { class: "legend" }, entries.map(([kind, words]) =>
  el("span", {}, el("i", { class: `key ${kind}` }), words)));
