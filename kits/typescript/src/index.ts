/** A worker of Lucius over HTTP: `new Worker(...)`, a handler, and `run()`. */
export type * from "./messages.js";
export { Final, Retryable, Stopped } from "./failures.js";
export { Task, type OutputRef } from "./task.js";
export { Worker, type Handler, type WorkerOptions } from "./worker.js";
