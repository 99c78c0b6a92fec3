// Calls to Lucius, with the key that was typed in, kept as long as this tab is open.

const KEY = "lucius.key";
const PAGE_MAX = 200;

export class Refused extends Error {
  constructor(status, problem) {
    const fields = (problem.errors ?? []).map((each) => `${each.pointer}: ${each.message}`);
    const said = problem.detail ?? problem.title ?? `HTTP ${status}`;
    super([said, ...fields.filter((each) => !said.includes(each))].join("\n"));
    this.status = status;
    this.code = problem.code ?? "";
  }
}

export const currentKey = () => sessionStorage.getItem(KEY) ?? "";

export const useKey = (key) => (key ? sessionStorage.setItem(KEY, key) : sessionStorage.removeItem(KEY));

export async function call(method, path, body = undefined) {
  const headers = { Accept: "application/json" };
  if (currentKey()) headers.Authorization = `Bearer ${currentKey()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, { method, headers, body, cache: "no-store" });
  } catch {
    throw new Refused(0, { detail: "Lucius does not answer." });
  }
  const text = await answer.text();
  let said = {};
  try {
    said = text ? JSON.parse(text) : {};
  } catch {
    said = { detail: text.slice(0, 300) };
  }
  if (!answer.ok) throw new Refused(answer.status, said);
  return said;
}

export const get = (path, query = {}) => {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value != null);
  const words = new URLSearchParams(given).toString();
  return call("GET", words ? `${path}?${words}` : path);
};

// As many of a list as are wanted, in as few pages as the API gives; and whether there may be more. Of a list with
// a filter a page can be short or empty: no more pages are read than were asked for, or a refresh would walk through
// all the jobs there are.
export async function many(path, query, wanted, pagesMax) {
  const items = [];
  let cursor = null;
  let pages = 0;
  do {
    const page = await get(path, { ...query, limit: Math.min(PAGE_MAX, wanted - items.length), cursor });
    items.push(...page.items);
    cursor = page.next_cursor;
    pages += 1;
  } while (cursor && items.length < wanted && pages < pagesMax);
  return { items, more: Boolean(cursor) };
}

export const jobPath = (jobId) => `/v1/jobs/${encodeURIComponent(jobId)}`;
