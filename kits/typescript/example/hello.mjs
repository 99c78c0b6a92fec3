// The service `hello`: greets who is named in its input. `node hello.mjs`
import { setTimeout as pause } from "node:timers/promises";

import { Final, Retryable, Worker } from "lucius-worker";

await new Worker("hello", async (task) => {
  await rehearse(task);
  const name = (await task.read()).toString().trim();
  return task.write("output.txt", `Hello, ${name}!\n`);
}).run();

// What `lucius certify` asks for with the payload's member `certify`: slow work, and failures.
async function rehearse(task) {
  const asked = task.payload?.certify;
  if (asked === "slow") {
    for (let part = 0; part < 100; part += 1) {
      task.report(part);
      await pause(30 * task.directive.lease_seconds, undefined, { signal: task.signal }); // a hundredth of three leases
    }
  }
  if (asked === "retryable") throw new Retryable("REHEARSED", "another attempt may succeed");
  if (asked === "final") throw new Final("REHEARSED", "no attempt can succeed");
}
