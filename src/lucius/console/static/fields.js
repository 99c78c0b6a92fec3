// Fields of a form from a JSON Schema. What a field cannot hold is written as JSON.

import { el } from "/console/dom.js";

const LONG = 200;

// Words between backticks, as code.
export const withCode = (text) => text.split("`").map((part, at) => (at % 2 ? el("code", {}, part) : part));

const kindOf = (schema) => [schema.type].flat().find((each) => each && each !== "null") ?? (schema.enum ? "enum" : "json");

function control(schema, value) {
  const kind = schema.enum ? "enum" : kindOf(schema);
  const usual = schema.default === undefined ? "" : String(schema.default);
  if (kind === "enum" || kind === "boolean") {
    const options = kind === "enum" ? schema.enum.filter((each) => each !== null) : [true, false];
    const node = el("select", {}, el("option", { value: "" }, usual ? `as usual: ${usual}` : "left out"), options.map((each) => el("option", { value: JSON.stringify(each) }, String(each))));
    node.value = value === undefined ? "" : JSON.stringify(value);
    return { node, read: () => (node.value ? JSON.parse(node.value) : undefined) };
  }
  if (kind === "integer" || kind === "number") {
    const node = el("input", { type: "number", min: schema.minimum, max: schema.maximum, step: kind === "integer" ? 1 : "any", placeholder: usual });
    node.value = value ?? "";
    return { node, read: () => (node.value === "" ? undefined : Number(node.value)) };
  }
  if (kind === "string") {
    const node = (schema.maxLength ?? 0) > LONG ? el("textarea", { rows: 3, placeholder: usual }) : el("input", { placeholder: usual, spellcheck: "false", autocomplete: "off" });
    node.value = value ?? "";
    return { node, read: () => node.value || undefined };
  }
  const node = el("textarea", { rows: 3, class: "code", spellcheck: "false", placeholder: kind === "array" ? "[ … ]" : "{ … }" });
  node.value = value === undefined ? "" : JSON.stringify(value, null, 2);
  return {
    node,
    read: () => {
      if (!node.value.trim()) return undefined;
      try {
        return JSON.parse(node.value);
      } catch {
        return node.value; // the plan says what is wrong with it
      }
    },
  };
}

// The fields of an object: `read()` gives what is in them, `problems(found)` says beside each what is wrong with it.
export function fieldsOf(schema, value, { pointer = "", onEdit }) {
  const required = new Set(schema?.required ?? []);
  const fields = Object.entries(schema?.properties ?? {}).map(([key, each]) => {
    const { node, read } = control(each, value?.[key]);
    const wrong = el("span", { class: "problem" });
    node.addEventListener("input", onEdit);
    const help = each.description ? el("span", { class: "help" }, withCode(each.description)) : "";
    const shown = el("label", { class: "field" }, el("span", {}, each.title ?? key, required.has(key) ? el("span", { class: "quiet" }, " required") : ""), node, help, wrong);
    return { key, read, wrong, node, at: `${pointer}/${key}`, shown };
  });
  return {
    shown: fields.map(({ shown }) => shown),
    read: () => {
      const found = {};
      for (const { key, read } of fields) if (read() !== undefined) found[key] = read();
      return found;
    },
    // Gives back those that belong to no field.
    problems: (found) => {
      const own = ({ pointer: at }, field) => at === field.at || at?.startsWith(`${field.at}/`);
      for (const field of fields) {
        const mine = found.filter((each) => own(each, field));
        field.wrong.textContent = mine.map(({ message }) => message).join("; ");
        field.node.setAttribute("aria-invalid", String(mine.length > 0));
      }
      return found.filter((each) => !fields.some((field) => own(each, field)));
    },
  };
}
