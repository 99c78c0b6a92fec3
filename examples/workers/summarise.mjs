// The service `summarise` with Node's fetch alone: node summarise.mjs [URL]
// Without a URL, Lucius is where LUCIUS_URL says, or on this machine.
import { mkdir, readFile, writeFile } from "node:fs/promises";

const base = process.argv[2] ?? process.env.LUCIUS_URL ?? "http://127.0.0.1:8420";
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

async function post(url, document, token = "") {
  const headers = { "Content-Type": "application/json", Authorization: `Bearer ${token}` };
  for (;;) {
    try {
      const answer = await fetch(url, { method: "POST", headers, body: JSON.stringify(document) });
      // Below 500 is the answer, a 409 included: asking again would change nothing.
      if (answer.status < 500) return await answer.json();
    } catch (fault) {
      // Lucius is being restarted; what it handed out is still ours.
      console.error(`${url} cannot be reached: ${fault.cause?.message ?? fault.message}`);
    }
    await pause(1000);
  }
}

function say(directive, type, more = {}) {
  const { jobId, stepId, tenant_id, attempt_no, lease_id, callback_urls, callback_token } = directive;
  const message = { type, jobId, stepId, tenant_id, attempt_no, lease_id, timestamp: new Date().toISOString() };
  return post(callback_urls[type.toLowerCase()], { ...message, ...more }, callback_token);
}

async function summarise({ upstream, input_ref, payload, workspace_ref, attempt_no, output_ref }) {
  const text = await readFile(new URL((upstream.at(-1)?.result_ref ?? input_ref).uri), "utf8");
  const summary = text.trim().split(/(?<=[.!?])\s+/).slice(0, payload.sentences).join(" ") + "\n";
  // A folder for each attempt: one that was given up never overwrites its successor.
  const uri = `${workspace_ref.uri}summarise/${attempt_no}/summary.txt`;
  for (const target of [uri, output_ref.uri]) {
    await mkdir(new URL(".", target), { recursive: true });
    await writeFile(new URL(target), summary);
  }
  return { uri };
}

for (;;) {
  const wish = { service: "summarise", max: 1, wait_seconds: 20 };
  const { directives } = await post(`${base}/v1/directives:lease`, wish);
  for (const directive of directives) {
    if ((await say(directive, "ACK")).stop) continue; // cancelled, or no longer ours
    const result = await summarise(directive).then(
      (output_ref) => ({ status: "SUCCEEDED", output_ref }),
      (fault) => ({ status: "FAILED_RETRY", error: { code: "INPUT_UNAVAILABLE", message: fault.message } }),
    );
    console.log(directive.jobId, result.status, await say(directive, "RESULT", result));
  }
}
