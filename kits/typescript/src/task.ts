/** One attempt, as its handler sees it. */
import { mkdir, readFile, writeFile } from "node:fs/promises";

import { Final, Retryable, Stopped } from "./failures.js";
import type { Directive, Ref, ResultRef } from "./messages.js";

/** Where the output of an attempt lies. */
export type OutputRef = ResultRef;

export class Task<Payload = unknown> {
  readonly #stop = new AbortController();
  percent = 0;
  note: string | null = null;

  /** `onReport` is called when the handler reports its progress. */
  constructor(
    readonly directive: Directive,
    private readonly onReport: () => void,
  ) {}

  get payload(): Payload {
    return this.directive.payload as Payload;
  }

  /** Aborted once the attempt is no longer wanted. Give it to `fetch` and to timers. */
  get signal(): AbortSignal {
    return this.#stop.signal;
  }

  /** Says how far the work is, in per cent. Throws `Stopped` once it is no longer wanted. */
  report(percent: number, note?: string): void {
    this.throwIfStopped();
    this.percent = Math.min(100, Math.max(0, percent));
    this.note = note ?? this.note;
    this.onReport();
  }

  throwIfStopped(): void {
    if (this.signal.aborted) throw new Stopped();
  }

  /** The address of an artifact of this attempt: attempts have a folder each, so that none overwrites another's. */
  artifact(name: string): string {
    const { workspace_ref, step_type, attempt_no } = this.directive;
    return `${workspace_ref.uri.replace(/\/*$/, "/")}${step_type.toLowerCase()}/${attempt_no}/${name}`;
  }

  /** The bytes of a `file:` URI, by default the input's. Other stores are for their own libraries. */
  async read(ref: Ref | ResultRef = this.directive.input_ref): Promise<Buffer> {
    try {
      return await readFile(fileUrl(ref.uri, "INPUT"));
    } catch (fault) {
      if (codeOf(fault) === "ENOENT") throw new Final("INPUT_NOT_FOUND", "nothing lies at the input's uri");
      if (fault instanceof Final) throw fault;
      throw new Retryable("INPUT_UNAVAILABLE", `the input cannot be read (${codeOf(fault)})`);
    }
  }

  /** Writes an artifact and, as the protocol promises it there, the job's output; answers with its address. */
  async write(name: string, data: string | Uint8Array): Promise<OutputRef> {
    const uri = this.artifact(name);
    for (const each of [uri, this.directive.output_ref.uri]) {
      const target = fileUrl(each, "OUTPUT");
      try {
        await mkdir(new URL(".", target), { recursive: true });
        await writeFile(target, data);
      } catch (fault) {
        throw new Retryable("OUTPUT_UNAVAILABLE", `the output cannot be written (${codeOf(fault)})`);
      }
    }
    return { uri };
  }

  /** For the worker: the attempt is no longer wanted. */
  stop(): void {
    this.#stop.abort(new Stopped());
  }
}

function fileUrl(uri: string, what: "INPUT" | "OUTPUT"): URL {
  const url = URL.canParse(uri) ? new URL(uri) : null;
  if (url?.protocol !== "file:") throw new Final(`${what}_NOT_ALLOWED`, `the ${what.toLowerCase()} is not a file`);
  return url;
}

function codeOf(fault: unknown): string {
  return (fault as NodeJS.ErrnoException).code ?? (fault instanceof Error ? fault.name : "unknown");
}
