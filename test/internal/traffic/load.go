package traffic

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// patience is how long a client waits for an answer. It is long, so that a busy machine is not taken for a server that
// is gone.
const patience = 30 * time.Second

// errNobody is what becomes of a request where no endpoint is known: kube-proxy refuses the connection.
var errNobody = errors.New("no endpoint")

// A Count is what became of the requests to a Service.
type Count struct {
	Service string
	// Sent is how many there were, and Lost how many of them got no good answer.
	Sent, Lost int
	// First and Last are when the first and the last of the lost ones were sent, and Why is why that was lost.
	First, Last time.Time
	Why         error
}

// A load sends requests, each over a connection of its own, at a steady pace and whatever becomes of those before. A
// request that is lost is not sent again.
type load struct {
	send func(context.Context) error

	mu    sync.Mutex
	count Count
	under sync.WaitGroup
}

// run sends them until ctx ends. What a busy machine has kept from being sent in time is sent late.
func (l *load) run(ctx context.Context) {
	began := time.Now()
	for number := 0; ; number++ {
		due := began.Add(time.Duration(number) * time.Second / time.Duration(rate))
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Until(due)):
			// What is under way when the end comes gets its answer.
			l.under.Go(func() { l.one(context.WithoutCancel(ctx)) })
		}
	}
}

func (l *load) one(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	began := time.Now()
	err := l.send(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count.Sent++
	if err == nil {
		return
	}
	l.count.Lost++
	if l.count.Lost == 1 || began.Before(l.count.First) {
		l.count.First = began
	}
	if began.After(l.count.Last) {
		l.count.Last, l.count.Why = began, err
	}
}

// so far is the count up to now.
func (l *load) soFar() Count {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

// total is the count when all requests have become something.
func (l *load) total() Count {
	l.under.Wait()
	return l.soFar()
}

// ask sends a request that takes 20 ms to be answered.
func ask(ctx context.Context, client *http.Client, address string) error {
	if address == "" {
		return errNobody
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/?takes=20ms", address), nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	_, err = io.Copy(io.Discard, answer.Body)
	return err
}
