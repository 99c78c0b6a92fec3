// Elements, and how they are kept. Everything that comes from a job goes in as text, never as markup.

const HANDLERS = ["onclick", "onsubmit", "onchange", "oninput", "onkeydown", "onpointermove", "onpointerleave"];
const SVG = "http://www.w3.org/2000/svg";
const OF_THE_READER = new Set(["open"]); // whether a <details> is open is not for a refresh to say

const nodes = (children) => [children].flat(Infinity).filter((child) => child != null && child !== "")
  .map((child) => (child instanceof Node ? child : document.createTextNode(String(child))));

function build(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (HANDLERS.includes(key)) made[key] = value;
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...nodes(children));
  return made;
}

export const el = (name, attributes = {}, ...children) => build(document.createElement(name), attributes, children);

export const svg = (name, attributes = {}, ...children) => build(document.createElementNS(SVG, name), attributes, children);

const keyOf = (node) => node.dataset?.key;
const alike = (one, other) => one.nodeName === other.nodeName && keyOf(one) === keyOf(other);

// Makes these the children of a node. Those that are there already and of the same kind stay, with the new words:
// so does what is focused, marked, opened or scrolled. What has a key is never taken for something else: a button
// under the reader's finger does not become that of another job.
export function fill(node, children) {
  const wanted = nodes(children);
  const keys = new Set(wanted.map(keyOf));
  for (const child of [...node.childNodes]) if (!keys.has(keyOf(child))) child.remove();
  const keyed = new Map([...node.childNodes].map((child) => [keyOf(child), child]));
  let at = node.firstChild;
  for (const fresh of wanted) {
    const kept = keyOf(fresh) === undefined ? at : keyed.get(keyOf(fresh));
    if (kept && alike(kept, fresh)) {
      if (kept === at) at = at.nextSibling;
      else node.insertBefore(kept, at);
      if (kept !== fresh) patch(kept, fresh);
    } else node.insertBefore(fresh, at);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function patch(kept, fresh) {
  if (!(kept instanceof Element)) {
    if (kept.nodeValue !== fresh.nodeValue) kept.nodeValue = fresh.nodeValue;
    return;
  }
  for (const { name } of [...kept.attributes])
    if (!fresh.hasAttribute(name) && !OF_THE_READER.has(name)) kept.removeAttribute(name);
  for (const { name, value } of fresh.attributes)
    if (kept.getAttribute(name) !== value) kept.setAttribute(name, value);
  for (const name of HANDLERS) kept[name] = fresh[name];
  if (kept.type === "checkbox") kept.checked = fresh.checked;
  fill(kept, [...fresh.childNodes]);
}
