// Written by tools/kit_types.py from docs/schemas; `make kits` writes it anew.

package worker

// CallbackUrls: Where replies go over HTTP.
type CallbackUrls struct {
	Ack      string `json:"ack"`
	Result   string `json:"result"`
	Progress string `json:"progress"`
}

// Mode: How directives are spread over lanes.
type Mode string

const (
	ModeDefault Mode = "DEFAULT"
	ModeBurst   Mode = "BURST"
)

// Ref: Where something is. Members other than `uri` pass through untouched.
type Ref map[string]interface{}

// ResultRef: Where something is. Members other than `uri` pass through untouched.
type ResultRef map[string]interface{}

// UpstreamStep: An earlier step of the same job.
type UpstreamStep struct {
	StepID    string    `json:"stepId"`
	StepType  string    `json:"step_type"`
	ResultRef ResultRef `json:"result_ref"`
}

// Directive: An attempt, leased to a service. `(jobId, stepId, attempt_no, lease_id)` is its idempotency key.
type Directive struct {
	Type           string `json:"type"`
	JobID          string `json:"jobId"`
	TenantID       string `json:"tenant_id"`
	StepID         string `json:"stepId"`
	ProtocolID     string `json:"protocol_id"`
	StepType       string `json:"step_type"`
	Service        string `json:"service"`
	LeaseID        string `json:"lease_id"`
	RoutingKeyUsed string `json:"routing_key_used"`
	CorrelationID  string `json:"correlation_id"`
	Traceparent    string `json:"traceparent"`
	ReplyTopic     string `json:"reply_topic"`
	CallbackToken  string `json:"callback_token"`
	AttemptNo      int    `json:"attempt_no"`
	InputRef       Ref    `json:"input_ref"`
	WorkspaceRef   Ref    `json:"workspace_ref"`
	OutputRef      Ref    `json:"output_ref"`
	// The step's own part of the payload, laid over the protocol's defaults.
	Payload interface{} `json:"payload"`
	Mode    Mode        `json:"mode"`
	Lane    int         `json:"lane"`
	// The steps before this one, with what they made.
	Upstream     []UpstreamStep `json:"upstream"`
	CallbackURLs CallbackUrls   `json:"callback_urls"`
	LeaseSeconds float64        `json:"lease_seconds"`
	// When the ACK is due; null while no clock runs.
	LeaseExpiresAt *string `json:"lease_expires_at"`
}

// Ack: A service has taken the directive up.
type Ack struct {
	Type      string `json:"type"`
	JobID     string `json:"jobId"`
	StepID    string `json:"stepId"`
	TenantID  string `json:"tenant_id"`
	AttemptNo int    `json:"attempt_no"`
	LeaseID   string `json:"lease_id"`
	// When the service sent it, by its own clock; for people only.
	Timestamp string `json:"timestamp"`
}

// Progress: The attempt goes on: renews its lease.
type Progress struct {
	Type      string `json:"type"`
	JobID     string `json:"jobId"`
	StepID    string `json:"stepId"`
	TenantID  string `json:"tenant_id"`
	AttemptNo int    `json:"attempt_no"`
	LeaseID   string `json:"lease_id"`
	// When the service sent it, by its own clock; for people only.
	Timestamp string `json:"timestamp"`
	// In per cent.
	Progress *float64 `json:"progress,omitempty"`
	// Cut after 1000 characters.
	Note *string `json:"note,omitempty"`
}

// ServiceError: What went wrong in a service.
type ServiceError struct {
	// Cut after 128 characters.
	Code *string `json:"code,omitempty"`
	// Cut after 2000 characters.
	Message *string `json:"message,omitempty"`
}

// Result: The attempt has ended.
type Result struct {
	Type      string `json:"type"`
	JobID     string `json:"jobId"`
	StepID    string `json:"stepId"`
	TenantID  string `json:"tenant_id"`
	AttemptNo int    `json:"attempt_no"`
	LeaseID   string `json:"lease_id"`
	// When the service sent it, by its own clock; for people only.
	Timestamp string `json:"timestamp"`
	// How the attempt ended. `FAILED` is the older spelling and needs a `failure_class`.
	Status string `json:"status"`
	// Read only with the older status FAILED: RETRYABLE or NON_RETRYABLE.
	FailureClass interface{} `json:"failure_class,omitempty"`
	// At most 4096 bytes as JSON.
	OutputRef ResultRef `json:"output_ref,omitempty"`
	// What the attempt made beside `output_ref`, kept as the member `artifacts` of `result_ref`. Together with `output_ref` at most 4096 bytes as JSON.
	Artifacts []ResultRef   `json:"artifacts,omitempty"`
	Error     *ServiceError `json:"error,omitempty"`
	// Seconds after which the next attempt begins, in the place of the backoff; at most 86400.
	RetryAfter *float64 `json:"retry_after,omitempty"`
	// The service wants to be given less for a while; it recovers by itself.
	SlowDown *bool `json:"slow_down,omitempty"`
	// What the attempt used, such as pages, tokens or money, as named numbers. It counts once an attempt, also where the attempt failed.
	Usage map[string]float64 `json:"usage,omitempty"`
}
