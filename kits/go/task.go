package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// Failure says how an attempt failed. Any other error is a failure that another attempt may mend.
type Failure struct {
	Code, Message string
	// Final: no attempt can succeed.
	Final bool
	// RetryAfter: seconds after which the next attempt begins, in the place of the protocol's backoff.
	RetryAfter *float64
	// SlowDown: the service wants to be given less for a while.
	SlowDown bool
}

func (failure *Failure) Error() string { return failure.Code + ": " + failure.Message }

func (failure *Failure) result(directive *Directive) *result {
	if failure.Final {
		return failed(directive, "FAILED_FINAL", failure.Code, failure.Message)
	}
	made := failed(directive, "FAILED_RETRY", failure.Code, failure.Message)
	made.RetryAfter = failure.RetryAfter
	if failure.SlowDown {
		made.SlowDown = &failure.SlowDown
	}
	return made
}

// Task is one attempt, as its handler sees it.
type Task struct {
	Directive *Directive

	ctx      context.Context
	cancel   context.CancelFunc
	reported chan struct{}
	mutex    sync.Mutex
	percent  float64
	note     string
	isEnding bool
}

func newTask(directive *Directive) *Task {
	ctx, cancel := context.WithCancel(context.Background())
	return &Task{Directive: directive, ctx: ctx, cancel: cancel, reported: make(chan struct{}, 1)}
}

// Payload reads the step's payload into a value of the handler's own type.
func (task *Task) Payload(into interface{}) error {
	text, err := json.Marshal(task.Directive.Payload)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return &Failure{Code: "INVALID_PAYLOAD", Message: "the payload is not what this step takes", Final: true}
	}
	return nil
}

// Report says how far the work is, in per cent.
func (task *Task) Report(percent float64, note string) {
	task.mutex.Lock()
	task.percent, task.note = percent, note
	task.mutex.Unlock()
	select {
	case task.reported <- struct{}{}:
	default: // the last report is not sent yet
	}
}

func (task *Task) progress() (float64, string) {
	task.mutex.Lock()
	defer task.mutex.Unlock()
	return task.percent, task.note
}

func (task *Task) stop() { task.cancel() }

func (task *Task) shutDown() {
	task.mutex.Lock()
	task.isEnding = true
	task.mutex.Unlock()
	task.cancel()
}

func (task *Task) isShutDown() bool {
	task.mutex.Lock()
	defer task.mutex.Unlock()
	return task.isEnding
}

// The orchestrator has given an attempt up once it has begun a new one.
func (task *Task) isEarlierThan(directive *Directive) bool {
	mine := task.Directive
	return mine.JobID == directive.JobID && mine.StepID == directive.StepID && mine.AttemptNo < directive.AttemptNo
}

// Artifact is the address of an artifact of this attempt: attempts have a folder each, so that none overwrites
// another's.
func (task *Task) Artifact(name string) string {
	folder := strings.TrimRight(uriOf(task.Directive.WorkspaceRef), "/")
	return fmt.Sprintf("%s/%s/%d/%s", folder, strings.ToLower(task.Directive.StepType), task.Directive.AttemptNo, name)
}

// Read gives the bytes of the input, where its address is a file's. Other stores are for their own libraries.
func (task *Task) Read() ([]byte, error) {
	path, err := filePath(uriOf(task.Directive.InputRef), "INPUT")
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &Failure{Code: "INPUT_NOT_FOUND", Message: "nothing lies at the input's uri", Final: true}
	}
	if err != nil {
		return nil, &Failure{Code: "INPUT_UNAVAILABLE", Message: "the input cannot be read"}
	}
	return data, nil
}

// Write writes an artifact and, as the protocol promises it there, the job's output; it answers with its address.
func (task *Task) Write(name string, data []byte) (ResultRef, error) {
	uri := task.Artifact(name)
	for _, each := range []string{uri, uriOf(task.Directive.OutputRef)} {
		path, err := filePath(each, "OUTPUT")
		if err != nil {
			return nil, err
		}
		err = os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			err = os.WriteFile(path, data, 0o644)
		}
		if err != nil {
			return nil, &Failure{Code: "OUTPUT_UNAVAILABLE", Message: "the output cannot be written"}
		}
	}
	return ResultRef{"uri": uri}, nil
}

func uriOf(ref map[string]interface{}) string {
	uri, _ := ref["uri"].(string)
	return uri
}

func filePath(uri, what string) (string, error) {
	parts, err := url.Parse(uri)
	if err != nil || parts.Scheme != "file" {
		message := fmt.Sprintf("the %s is not a file", strings.ToLower(what))
		return "", &Failure{Code: what + "_NOT_ALLOWED", Message: message, Final: true}
	}
	return parts.Path, nil
}
