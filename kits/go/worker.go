// Package worker writes a worker of Lucius in Go, with the standard library alone: it leases directives over HTTP,
// answers them, keeps their leases alive, and ends without leaving anything half done.
//
//	worker.New("hello", handle).Run()
package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// Handler does the work of one attempt. It answers with where the output lies, or with nil. The context is done once
// the attempt is no longer wanted.
type Handler func(ctx context.Context, task *Task) (ResultRef, error)

// Worker runs one service until it is told to stop.
type Worker struct {
	Service string
	Handler Handler
	// URL of the server; LUCIUS_URL unless given, else http://127.0.0.1:8420.
	URL string
	// APIKey for leases; LUCIUS_API_KEY unless given.
	APIKey string
	// Concurrency is how many attempts there are at a time; 8 unless given.
	Concurrency int
	// Wait is how long a call for work waits; 20 seconds unless given.
	Wait time.Duration
	// Drain is how long attempts under way may take to end once the worker is told to; 30 seconds unless given.
	Drain time.Duration
	// Log is told of what happens; log.Printf unless given.
	Log func(format string, values ...interface{})

	transport *transport
	mutex     sync.Mutex
	known     memory         // by attempt: its RESULT, nil while it is worked on
	newest    memory         // by step: its newest attempt
	tasks     map[*Task]bool // under way
	running   sync.WaitGroup
	room      chan struct{}
}

const (
	heartbeatMax    = time.Minute
	heartbeatMin    = 80 * time.Millisecond
	reportEvery     = time.Second
	rememberedMax   = 10_000
	pauseMin        = 200 * time.Millisecond
	pauseMax        = time.Second
	undeliveredWait = 30 * time.Second
	farewell        = 2 * time.Second
	answerTime      = 2 * time.Second
	idleAnswerTime  = 500 * time.Millisecond // with nothing under way there is rarely a queue
)

// New makes a worker with the settings of the environment.
func New(service string, handler Handler) *Worker {
	return &Worker{Service: service, Handler: handler}
}

// Run works until the process is sent SIGTERM or SIGINT.
func (worker *Worker) Run() {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	worker.RunUntil(ctx)
}

// RunUntil works until the context is done, and returns once what is under way has ended.
func (worker *Worker) RunUntil(ctx context.Context) {
	worker.setDefaults()
	stopped := make(chan time.Time, 1)
	go func() {
		<-ctx.Done()
		stopped <- time.Now()
	}()
	failures := 0
	for ctx.Err() == nil {
		room := worker.waitForRoom(ctx)
		if room == 0 {
			break
		}
		leased, err := worker.transport.lease(ctx, room, worker.Wait, worker.answerWindow)
		if err != nil {
			if ctx.Err() != nil {
				break
			}
			failures++
			if failures <= 3 || failures%15 == 0 {
				worker.Log("lease_failed: %v (%d in a row)", err, failures)
			}
			sleep(ctx, backoff(failures, pauseMin, pauseMax))
			continue
		}
		failures = 0
		for _, raw := range leased {
			worker.begin(ctx, raw)
		}
	}
	worker.drain((<-stopped).Add(worker.Drain))
}

func (worker *Worker) setDefaults() {
	worker.URL = first(worker.URL, os.Getenv("LUCIUS_URL"), "http://127.0.0.1:8420")
	worker.APIKey = first(worker.APIKey, os.Getenv("LUCIUS_API_KEY"))
	if worker.Concurrency <= 0 {
		worker.Concurrency = 8
	}
	if worker.Wait <= 0 {
		worker.Wait = 20 * time.Second
	}
	if worker.Drain <= 0 {
		worker.Drain = 30 * time.Second
	}
	if worker.Log == nil {
		worker.Log = log.Printf
	}
	worker.transport = newTransport(worker.URL, worker.Service, worker.APIKey)
	worker.known, worker.newest = newMemory(), newMemory()
	worker.tasks = map[*Task]bool{}
	worker.room = make(chan struct{}, worker.Concurrency)
}

// How many more attempts there may be; waits until there may be one. 0 once the context is done.
func (worker *Worker) waitForRoom(ctx context.Context) int {
	select {
	case <-ctx.Done():
		return 0
	case worker.room <- struct{}{}:
		<-worker.room
		return worker.Concurrency - len(worker.room)
	}
}

// A lease that was asked for just before the stop may be on its way here, answered: its directives would wait for
// their ACK in vain, and cost an attempt. One that was asked for longer ago has nothing to bring.
func (worker *Worker) answerWindow() time.Duration {
	answerWindow := idleAnswerTime
	if len(worker.room) > 0 {
		answerWindow = answerTime
	}
	if answerWindow > worker.Drain {
		return worker.Drain
	}
	return answerWindow
}

// What takes too long is told to stop, and answered as shut down.
func (worker *Worker) drain(until time.Time) {
	done := make(chan struct{})
	go func() {
		worker.running.Wait()
		close(done)
	}()
	select {
	case <-done:
		return
	case <-time.After(time.Until(until)):
	}
	worker.mutex.Lock()
	worker.Log("drain_gave_up: %d under way", len(worker.tasks))
	for task := range worker.tasks {
		task.shutDown()
	}
	worker.mutex.Unlock()
	select {
	case <-done:
	case <-time.After(farewell):
	}
}

func (worker *Worker) begin(ctx context.Context, raw json.RawMessage) {
	directive := &Directive{}
	if json.Unmarshal(raw, directive) != nil || !directive.isSound() {
		worker.Log("directive_unreadable")
		return
	}
	task := newTask(directive)
	worker.mutex.Lock()
	step := fmt.Sprintf("%q %q", directive.JobID, directive.StepID)
	newest, _ := worker.newest.get(step).(int)
	if newest <= directive.AttemptNo {
		worker.newest.put(step, directive.AttemptNo)
		for other := range worker.tasks {
			if other.isEarlierThan(directive) {
				other.stop()
			}
		}
		worker.tasks[task] = true
	}
	worker.mutex.Unlock()
	if newest > directive.AttemptNo {
		worker.Log("directive_overtaken: %s by attempt %d", directive.name(), newest)
		return
	}
	worker.running.Add(1)
	worker.room <- struct{}{}
	go func() {
		defer worker.running.Done()
		defer func() { <-worker.room }()
		worker.carryOut(ctx, task)
		worker.mutex.Lock()
		delete(worker.tasks, task)
		worker.mutex.Unlock()
	}()
}

// Copies of a directive share one attempt: those that come later are answered with its RESULT.
func (worker *Worker) carryOut(ctx context.Context, task *Task) {
	key := task.Directive.key()
	worker.mutex.Lock()
	known := worker.known.get(key)
	if known == nil {
		worker.known.put(key, (*result)(nil))
	}
	worker.mutex.Unlock()
	made, _ := known.(*result)
	if known != nil && made == nil {
		return // another copy is worked on
	}
	if made == nil {
		made = worker.attempt(ctx, task)
		worker.mutex.Lock()
		if made == nil {
			worker.known.remove(key)
		} else {
			worker.known.put(key, made)
		}
		worker.mutex.Unlock()
	}
	// A RESULT that was not delivered is sent again now and then, until the worker ends.
	for made != nil && worker.reply(task.Directive, "result", made) == nil && ctx.Err() == nil {
		sleep(ctx, undeliveredWait)
	}
}

// The RESULT; nil where the attempt is another's.
func (worker *Worker) attempt(ctx context.Context, task *Task) *result {
	directive := task.Directive
	// Should the ACK not get through, the work is done all the same: a RESULT implies it.
	answer := worker.reply(directive, "ack", newAck(directive))
	if answer != nil && answer.notOurs {
		return nil
	}
	if answer != nil && answer.Stop {
		return failed(directive, "FAILED_RETRY", "STOPPED", "stopped before the work began")
	}
	heartbeat := startHeartbeat(task, func() *answerOf { return worker.reply(directive, "progress", newProgress(task)) })
	output, err := worker.handle(task)
	heartbeat.end() // a sign of life that arrives after the RESULT is only noise
	if err == nil {
		return succeeded(directive, output)
	}
	failure := &Failure{}
	switch {
	case errors.As(err, &failure):
		return failure.result(directive)
	case task.isShutDown():
		return failed(directive, "FAILED_RETRY", "SHUTDOWN", "the service was shut down during the work")
	case task.ctx.Err() != nil:
		return failed(directive, "FAILED_RETRY", "STOPPED", "stopped at the orchestrator's word")
	}
	worker.Log("handler_failed: %s: %T", directive.name(), err)
	return failed(directive, "FAILED_RETRY", "UNEXPECTED", fmt.Sprintf("%T", err)) // its text could hold anything
}

// A panic of the handler is a failure of the attempt, not of the worker.
func (worker *Worker) handle(task *Task) (output ResultRef, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			worker.Log("handler_panicked: %s: %T", task.Directive.name(), fault)
			err = &Failure{Code: "UNEXPECTED", Message: "the handler panicked"}
		}
	}()
	return worker.Handler(task.ctx, task)
}

// nil where it could not be delivered, which must not end the work.
func (worker *Worker) reply(directive *Directive, kind string, message interface{}) *answerOf {
	answer, err := worker.transport.reply(directive, kind, message)
	if err != nil {
		worker.Log("reply_undelivered: %s of %s: %v", kind, directive.name(), err)
		return nil
	}
	if answer.Outcome == "refused" {
		worker.Log("reply_refused: %s of %s", kind, directive.name())
	}
	return answer
}

// Signs of life of one attempt: in time for its lease, and as its handler reports, but not more than one a second.
type heartbeat struct {
	over, quiet chan struct{}
}

func startHeartbeat(task *Task, send func() *answerOf) *heartbeat {
	every := heartbeatMax
	if third := time.Duration(task.Directive.LeaseSeconds * float64(time.Second) / 3); third > 0 && third < every {
		every = third
	}
	if every < heartbeatMin {
		every = heartbeatMin
	}
	beat := &heartbeat{over: make(chan struct{}), quiet: make(chan struct{})}
	go func() {
		defer close(beat.quiet)
		due, sent := time.NewTimer(every), time.Now()
		defer due.Stop()
		for {
			select {
			case <-beat.over:
				return
			case <-due.C:
			case <-task.reported:
				if time.Since(sent) < reportEvery {
					continue
				}
				if !due.Stop() {
					select {
					case <-due.C:
					default:
					}
				}
			}
			sent = time.Now()
			due.Reset(every)
			if answer := send(); answer != nil && answer.Stop {
				task.stop()
			}
		}
	}()
	return beat
}

func (beat *heartbeat) end() {
	close(beat.over)
	<-beat.quiet
}

// A map that forgets its oldest entries.
type memory struct {
	values map[string]interface{}
	order  []string
}

func newMemory() memory { return memory{values: map[string]interface{}{}} }

func (memory *memory) get(key string) interface{} { return memory.values[key] }

func (memory *memory) put(key string, value interface{}) {
	if _, found := memory.values[key]; !found {
		memory.order = append(memory.order, key)
		for len(memory.order) > rememberedMax {
			delete(memory.values, memory.order[0])
			memory.order = memory.order[1:]
		}
	}
	memory.values[key] = value
}

func (memory *memory) remove(key string) {
	delete(memory.values, key)
	for at, each := range memory.order {
		if each == key {
			memory.order = append(memory.order[:at], memory.order[at+1:]...)
			return
		}
	}
}

func first(values ...string) string {
	for _, value := range values {
		if value != "" {
			return value
		}
	}
	return ""
}

func backoff(failures int, least, most time.Duration) time.Duration {
	for ; failures > 1 && least < most; failures-- {
		least *= 2
	}
	if least > most {
		return most
	}
	return least
}

func sleep(ctx context.Context, duration time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(duration):
	}
}
