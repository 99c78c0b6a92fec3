// Calls to Lucius, with the credential that was given, kept as long as this tab is open.

const KEY = "lucius.key";
const PAGE_MAX = 200;
const WAIT_FIRST_MS = 500;
const WAIT_MAX_MS = 15000;

export class Refused extends Error {
  constructor(status, problem) {
    const fields = (problem.errors ?? []).map((each) => `${each.pointer}: ${each.message}`);
    const said = problem.detail ?? problem.title ?? `HTTP ${status}`;
    super([said, ...fields.filter((each) => !said.includes(each))].join("\n"));
    this.status = status;
    this.code = problem.code ?? "";
    this.fields = problem.errors ?? [];
  }
}

export const currentKey = () => sessionStorage.getItem(KEY) ?? "";

// A token of an identity provider has three parts; a key of Lucius has no dots.
export const isToken = (credential) => credential.split(".").length === 3;

export const useKey = (key) => (key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY));

async function ask(method, path, { body, accept = "application/json", signal } = {}) {
  const headers = { Accept: accept };
  if (currentKey()) headers.Authorization = `Bearer ${currentKey()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  try {
    return await fetch(path, { method, headers, body, signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, { detail: "Lucius does not answer." });
  }
}

function parsed(text) {
  try {
    return text ? JSON.parse(text) : {};
  } catch {
    return { detail: text.slice(0, 300) };
  }
}

export async function call(method, path, body = undefined, signal = undefined) {
  const answer = await ask(method, path, { body, signal });
  const said = parsed(await answer.text());
  if (!answer.ok) throw new Refused(answer.status, said);
  return said;
}

// The answer itself, for what is no JSON.
export async function read(path) {
  const answer = await ask("GET", path, { accept: "*/*" });
  if (!answer.ok) throw new Refused(answer.status, parsed(await answer.text()));
  return answer;
}

export const post = (path, document = {}) => call("POST", path, JSON.stringify(document));

export function withQuery(path, query) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value != null);
  const words = new URLSearchParams(given).toString();
  return words ? `${path}?${words}` : path;
}

export const get = (path, query = {}) => call("GET", withQuery(path, query));

// As many of a list as are wanted, in as few pages as the API gives; and whether there may be more. Of a list with
// a filter a page can be short or empty: no more pages are read than were asked for, or a refresh would walk through
// all the jobs there are.
export async function many(path, query, wanted, pagesMax) {
  const items = [];
  let cursor = null;
  let pages = 0;
  let rest;
  do {
    const page = await get(path, { ...query, limit: Math.min(PAGE_MAX, wanted - items.length), cursor });
    items.push(...page.items);
    cursor = page.next_cursor;
    rest = page;
    pages += 1;
  } while (cursor && items.length < wanted && pages < pagesMax);
  return { ...rest, items, more: Boolean(cursor) };
}

export const jobPath = (jobId) => `/v1/jobs/${encodeURIComponent(jobId)}`;

// Server-sent events by fetch, which can carry a key in its header. `path()` is asked anew at each attempt, so that
// it can say how far the page has got. Ends when `signal` is aborted, or when the server says that nothing follows.
export async function listen(path, { signal, onEvent, onState = () => {} }) {
  let wait = WAIT_FIRST_MS;
  while (!signal.aborted) {
    try {
      const answer = await ask("GET", path(), { accept: "text/event-stream", signal });
      if (answer.status === 204) return;
      if (!answer.ok) throw new Refused(answer.status, parsed(await answer.text()));
      onState("live");
      for await (const event of eventsOf(answer.body)) {
        wait = WAIT_FIRST_MS;
        onEvent(event);
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Refused && error.status >= 400 && error.status < 500 && error.status !== 429) throw error;
    }
    onState("waiting");
    await pause(wait, signal);
    wait = Math.min(wait * 2, WAIT_MAX_MS);
  }
}

async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const event = { name: "message", data: "" };
        for (const line of block.split("\n")) {
          const [, field, text] = /^(\w*): ?(.*)$/.exec(line) ?? [];
          if (field === "event") event.name = text;
          else if (field === "data") event.data += text;
        }
        if (event.data) yield { name: event.name, data: JSON.parse(event.data) };
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

export const pause = (ms, signal) => new Promise((done) => {
  if (signal?.aborted) return done();
  const timer = setTimeout(done, ms);
  signal?.addEventListener("abort", () => { clearTimeout(timer); done(); }, { once: true });
});
