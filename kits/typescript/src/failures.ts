/** What a handler throws to say how the attempt failed. Any other error is a failure that another attempt may mend. */

export interface RetryWish {
  /** Seconds after which the next attempt begins, in the place of the protocol's backoff. */
  retryAfter?: number;
  /** The service wants to be given less for a while. */
  slowDown?: boolean;
}

/** Another attempt may succeed. */
export class Retryable extends Error {
  constructor(
    readonly code: string,
    message: string,
    readonly wish: RetryWish = {},
  ) {
    super(message);
    this.name = "Retryable";
  }
}

/** No attempt can succeed. */
export class Final extends Error {
  constructor(
    readonly code: string,
    message: string,
  ) {
    super(message);
    this.name = "Final";
  }
}

/** The attempt is no longer wanted: the job was cancelled, or another attempt has begun. */
export class Stopped extends Error {
  constructor() {
    super("stopped at the orchestrator's word");
    this.name = "Stopped";
  }
}
