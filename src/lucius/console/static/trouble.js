// What went wrong, and what to do about it: above all, which key is missing.

import { currentKey } from "/console/api.js";
import { action, fill } from "/console/dom.js";

const trouble = document.getElementById("trouble");
const keyForm = document.getElementById("key-form");
let from = ""; // what said it last: a button is not taken back by a refresh

// With authentication off, no key helps.
const keyHelps = (error) => error.status === 401 || (error.status === 403 && currentKey() !== "");

function words(error, role) {
  if (!keyHelps(error)) return error.message;
  if (error.status === 403) return `The key in use does not open this: ${error.message}. Type in one that does.`;
  if (currentKey()) return `The key in use opens nothing: ${error.message}. Type in another.`;
  return `Lucius asks for an API key${role ? `, one with the role ${role}` : ""}: type it in above.`;
}

export function say(whose, error, role = "") {
  const helps = keyHelps(error);
  from = whose;
  fill(trouble, [words(error, role), helps ? " " : "", helps ? action("Type in a key", () => keyForm.elements.key.focus()) : ""]);
  keyForm.classList.toggle("wanted", helps);
  trouble.hidden = false;
}

// Without saying whose: of everybody.
export function unsay(whose = from) {
  if (whose !== from) return;
  fill(trouble, []);
  keyForm.classList.remove("wanted");
  trouble.hidden = true;
}
