package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// How long a reply is worth sending.
var deadlines = map[string]time.Duration{
	"ack": 20 * time.Second, "progress": 10 * time.Second, "result": 10 * time.Minute,
}

const (
	requestTime      = 10 * time.Second
	replyPauseMin    = 100 * time.Millisecond
	replyPauseMax    = 5 * time.Second
	retryAfterMax    = 30 * time.Second
	answerBytesMax   = 64 << 20
	statusTooEarly   = 425
	contentTypeOfAll = "application/json"
)

// What a service says of an attempt beside the schema's members: what it was given comes back.
type echo struct {
	CorrelationID string `json:"correlation_id,omitempty"`
	Traceparent   string `json:"traceparent,omitempty"`
}

type ack struct {
	Ack
	echo
}

type progress struct {
	Progress
	echo
}

type result struct {
	Result
	echo
}

func echoOf(directive *Directive) echo {
	return echo{CorrelationID: directive.CorrelationID, Traceparent: directive.Traceparent}
}

func now() string { return time.Now().UTC().Format(time.RFC3339Nano) }

func newAck(directive *Directive) *ack {
	return &ack{Ack{
		Type: "ACK", JobID: directive.JobID, StepID: directive.StepID, TenantID: directive.TenantID,
		AttemptNo: directive.AttemptNo, LeaseID: directive.LeaseID, Timestamp: now(),
	}, echoOf(directive)}
}

func newProgress(task *Task) *progress {
	directive := task.Directive
	percent, note := task.progress()
	made := &progress{Progress{
		Type: "PROGRESS", JobID: directive.JobID, StepID: directive.StepID, TenantID: directive.TenantID,
		AttemptNo: directive.AttemptNo, LeaseID: directive.LeaseID, Timestamp: now(), Progress: &percent,
	}, echoOf(directive)}
	if note != "" {
		made.Note = &note
	}
	return made
}

func newResult(directive *Directive, status string) *result {
	return &result{Result{
		Type: "RESULT", JobID: directive.JobID, StepID: directive.StepID, TenantID: directive.TenantID,
		AttemptNo: directive.AttemptNo, LeaseID: directive.LeaseID, Timestamp: now(), Status: status,
	}, echoOf(directive)}
}

func succeeded(directive *Directive, output ResultRef) *result {
	made := newResult(directive, "SUCCEEDED")
	made.OutputRef = output
	return made
}

func failed(directive *Directive, status, code, message string) *result {
	made := newResult(directive, status)
	made.Error = &ServiceError{Code: &code, Message: &message}
	return made
}

func (directive *Directive) isSound() bool {
	return directive.JobID != "" && directive.StepID != "" && directive.TenantID != "" &&
		directive.AttemptNo > 0 && directive.LeaseID != "" && directive.CallbackToken != ""
}

// What makes this piece of work one: copies share it, attempts do not.
func (directive *Directive) key() string {
	return fmt.Sprintf("%q %q %d %q", directive.JobID, directive.StepID, directive.AttemptNo, directive.LeaseID)
}

func (directive *Directive) name() string {
	return fmt.Sprintf("%s %s attempt %d", directive.JobID, directive.StepID, directive.AttemptNo)
}

// What became of a reply. Stop: the attempt is no longer wanted. notOurs: its lease is another's.
type answerOf struct {
	Outcome string `json:"outcome"`
	Stop    bool   `json:"stop"`
	notOurs bool
}

type transport struct {
	url, service, key string
	client            *http.Client
}

func newTransport(url, service, key string) *transport {
	return &transport{url: strings.TrimRight(url, "/"), service: service, key: key, client: &http.Client{}}
}

// Up to `most` directives; none where none came in time. Once `ctx` is done, an answer is taken for as long after the
// call was made as `answerWindow` then says.
func (transport *transport) lease(
	ctx context.Context, most int, wait time.Duration, answerWindow func() time.Duration,
) ([]json.RawMessage, error) {
	wish := map[string]interface{}{"service": transport.service, "max": most, "wait_seconds": wait.Seconds()}
	open, cancel := delayedStop(ctx, wait+requestTime, answerWindow)
	defer cancel()
	status, header, body, err := transport.post(open, transport.url+"/v1/directives:lease", transport.key, wish)
	if err != nil {
		return nil, err
	}
	answer := struct {
		Directives []json.RawMessage `json:"directives"`
		Detail     string            `json:"detail"`
	}{}
	unread := json.Unmarshal(body, &answer)
	if status != http.StatusOK {
		sleep(ctx, retryAfter(header))
		return nil, fmt.Errorf("the lease was refused: status %d %s", status, answer.Detail)
	}
	return answer.Directives, unread
}

// A context that is done once `ctx` is, but not before `answerWindow` has passed since now; and after `most` in any case.
func delayedStop(
	ctx context.Context, most time.Duration, answerWindow func() time.Duration,
) (context.Context, context.CancelFunc) {
	since := time.Now()
	open, cancel := context.WithTimeout(context.Background(), most)
	go func() {
		select {
		case <-open.Done():
		case <-ctx.Done():
			sleep(open, time.Until(since.Add(answerWindow())))
			cancel()
		}
	}()
	return open, cancel
}

// Sends a reply until it is answered, or until it is not worth sending any more.
func (transport *transport) reply(directive *Directive, kind string, message interface{}) (*answerOf, error) {
	address := map[string]string{
		"ack": directive.CallbackURLs.Ack, "progress": directive.CallbackURLs.Progress, "result": directive.CallbackURLs.Result,
	}[kind]
	address = first(address, transport.url+"/v1/callbacks/"+kind)
	deadline := time.Now().Add(deadlines[kind])
	for pause := replyPauseMin; ; pause = backoff(2, pause, replyPauseMax) {
		answer, rest, err := transport.replyOnce(address, directive.CallbackToken, message)
		if err == nil {
			return answer, nil
		}
		if rest < pause {
			rest = pause
		}
		if time.Now().Add(rest).After(deadline) {
			return nil, fmt.Errorf("given up: %w", err)
		}
		time.Sleep(rest)
	}
}

func (transport *transport) replyOnce(
	address, token string, message interface{},
) (*answerOf, time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.Background(), requestTime)
	defer cancel()
	status, header, body, err := transport.post(ctx, address, token, message)
	if err != nil {
		return nil, 0, err
	}
	switch {
	case status == http.StatusOK:
		answer := &answerOf{}
		return answer, 0, json.Unmarshal(body, answer)
	case status == http.StatusConflict:
		return &answerOf{Outcome: "stale", Stop: true, notOurs: true}, 0, nil
	case status >= 500, status == http.StatusRequestTimeout, status == statusTooEarly, status == http.StatusTooManyRequests:
		return nil, retryAfter(header), fmt.Errorf("status %d", status)
	}
	return &answerOf{Outcome: "refused", Stop: true, notOurs: true}, 0, nil
}

func (transport *transport) post(
	ctx context.Context, address, token string, document interface{},
) (int, http.Header, []byte, error) {
	text, err := json.Marshal(document)
	if err != nil {
		return 0, nil, nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(text))
	if err != nil {
		return 0, nil, nil, errors.New("the address is not one")
	}
	request.Header.Set("Content-Type", contentTypeOfAll)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := transport.client.Do(request)
	if err != nil {
		return 0, nil, nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, answerBytesMax))
	return response.StatusCode, response.Header, body, err
}

// Only the form in seconds; a date would need both clocks to agree.
func retryAfter(header http.Header) time.Duration {
	seconds, err := strconv.Atoi(header.Get("Retry-After"))
	if err != nil || seconds < 0 {
		return 0
	}
	if asked := time.Duration(seconds) * time.Second; asked < retryAfterMax {
		return asked
	}
	return retryAfterMax
}
