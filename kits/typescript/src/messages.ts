// Written by tools/kit_types.py from docs/schemas; `make kits` writes it anew.

/** Where replies go over HTTP. */
export interface CallbackUrls {
  ack: string;
  result: string;
  progress: string;
}

/** How directives are spread over lanes. */
export type Mode = "DEFAULT" | "BURST";

/** Where something is. Members other than `uri` pass through untouched. */
export interface Ref {
  uri: string;
  [member: string]: unknown;
}

/** Where something is. Members other than `uri` pass through untouched. */
export interface ResultRef {
  uri: string;
  [member: string]: unknown;
}

/** An earlier step of the same job. */
export interface UpstreamStep {
  stepId: string;
  step_type: string;
  result_ref: ResultRef | null;
}

/** An attempt, leased to a service. `(jobId, stepId, attempt_no, lease_id)` is its idempotency key. */
export interface Directive {
  type: "DIRECTIVE";
  jobId: string;
  tenant_id: string;
  stepId: string;
  protocol_id: string;
  step_type: string;
  service: string;
  lease_id: string;
  routing_key_used: string;
  correlation_id: string;
  traceparent: string;
  reply_topic: string;
  callback_token: string;
  attempt_no: number;
  input_ref: Ref;
  workspace_ref: Ref;
  output_ref: Ref;
  /** The step's own part of the payload, laid over the protocol's defaults. */
  payload: unknown;
  mode: Mode;
  lane: number;
  /** The steps before this one, with what they made. */
  upstream: UpstreamStep[];
  callback_urls: CallbackUrls;
  lease_seconds: number;
  /** When the ACK is due; null while no clock runs. */
  lease_expires_at: string | null;
}

/** A service has taken the directive up. */
export interface Ack {
  type: "ACK";
  jobId: string;
  stepId: string;
  tenant_id: string;
  attempt_no: number;
  lease_id: string;
  /** When the service sent it, by its own clock; for people only. */
  timestamp: string;
}

/** The attempt goes on: renews its lease. */
export interface Progress {
  type: "PROGRESS";
  jobId: string;
  stepId: string;
  tenant_id: string;
  attempt_no: number;
  lease_id: string;
  /** When the service sent it, by its own clock; for people only. */
  timestamp: string;
  /** In per cent. */
  progress?: number | null;
  /** Cut after 1000 characters. */
  note?: string | null;
}

/** What went wrong in a service. */
export interface ServiceError {
  /** Cut after 128 characters. */
  code?: string | null;
  /** Cut after 2000 characters. */
  message?: string | null;
}

/** The attempt has ended. */
export interface Result {
  type: "RESULT";
  jobId: string;
  stepId: string;
  tenant_id: string;
  attempt_no: number;
  lease_id: string;
  /** When the service sent it, by its own clock; for people only. */
  timestamp: string;
  /** How the attempt ended. `FAILED` is the older spelling and needs a `failure_class`. */
  status: "SUCCEEDED" | "FAILED_RETRY" | "FAILED_FINAL" | "FAILED";
  /** Read only with the older status FAILED: RETRYABLE or NON_RETRYABLE. */
  failure_class?: unknown;
  /** At most 4096 bytes as JSON. */
  output_ref?: ResultRef | null;
  /** What the attempt made beside `output_ref`, kept as the member `artifacts` of `result_ref`. Together with `output_ref` at most 4096 bytes as JSON. */
  artifacts?: ResultRef[] | null;
  error?: ServiceError | null;
  /** Seconds after which the next attempt begins, in the place of the backoff; at most 86400. */
  retry_after?: number | null;
  /** The service wants to be given less for a while; it recovers by itself. */
  slow_down?: boolean | null;
  /** What the attempt used, such as pages, tokens or money, as named numbers. It counts once an attempt, also where the attempt failed. */
  usage?: Record<string, number> | null;
}
