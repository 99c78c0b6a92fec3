// The service `hello`: greets who is named in its input. `go build -o hello ./example/hello && ./hello`
package main

import (
	"context"
	"strings"
	"time"

	"lucius/worker"
)

func main() {
	worker.New("hello", hello).Run()
}

func hello(ctx context.Context, task *worker.Task) (worker.ResultRef, error) {
	if err := rehearse(ctx, task); err != nil {
		return nil, err
	}
	name, err := task.Read()
	if err != nil {
		return nil, err
	}
	return task.Write("output.txt", []byte("Hello, "+strings.TrimSpace(string(name))+"!\n"))
}

// What `lucius certify` asks for with the payload's member `certify`: slow work, and failures.
func rehearse(ctx context.Context, task *worker.Task) error {
	payload := struct {
		Certify string `json:"certify"`
	}{}
	if err := task.Payload(&payload); err != nil {
		return err
	}
	switch payload.Certify {
	case "slow":
		for part := 0; part < 100; part++ {
			task.Report(float64(part), "")
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Duration(task.Directive.LeaseSeconds * 0.03 * float64(time.Second))):
			}
		}
	case "retryable":
		return &worker.Failure{Code: "REHEARSED", Message: "another attempt may succeed"}
	case "final":
		return &worker.Failure{Code: "REHEARSED", Message: "no attempt can succeed", Final: true}
	}
	return nil
}
