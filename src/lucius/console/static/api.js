// Calls to Lucius, with the key that was typed in, kept as long as this tab is open.

const KEY = "lucius.key";

export class Refused extends Error {
  constructor(status, problem) {
    const fields = (problem.errors ?? []).map((each) => `${each.pointer}: ${each.message}`);
    super([problem.detail ?? problem.title ?? `HTTP ${status}`, ...fields].join("\n"));
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

export const jobPath = (jobId) => `/v1/jobs/${encodeURIComponent(jobId)}`;
