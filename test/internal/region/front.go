package region

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"

	"github.com/nth-project/nth/test/internal/lab"
)

// front is the region's address. Requests for SQS go on to the peer.
func (r *Region) front() http.Handler {
	target, err := url.Parse(r.peer.url)
	if err != nil {
		panic(err) // it was matched by an expression for URLs
	}
	forward := &httputil.ReverseProxy{
		Rewrite:        func(p *httputil.ProxyRequest) { p.SetURL(target) },
		ModifyResponse: r.observe,
		ErrorHandler:   func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ErrorLog:       log.New(io.Discard, "", 0),
	}
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		_, action, ours := strings.Cut(request.Header.Get("X-Amz-Target"), "AmazonSQS.")
		if !ours {
			r.services(w, request)
			return
		}
		down, away := r.state()
		if away {
			panic(http.ErrAbortHandler) // cuts the connection
		}
		if action == "DeleteMessageBatch" && !r.judge(request) {
			panic(http.ErrAbortHandler)
		}
		ctx, cancel := context.WithCancel(request.Context())
		defer cancel()
		go func() {
			select {
			case <-down:
				cancel()
			case <-ctx.Done():
			}
		}()
		forward.ServeHTTP(w, request.WithContext(ctx))
	})
}

// state tells whether SQS is away, or what says that it is.
func (r *Region) state() (down <-chan struct{}, away bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.down, r.away
}

// Down cuts all connections to SQS, and each new one, until Up.
func (r *Region) Down() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.away {
		close(r.down)
		r.away = true
	}
}

// Up ends what Down began.
func (r *Region) Up() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.away {
		r.down, r.away = make(chan struct{}), false
	}
}

// Deleting calls judge with each message that a consumer asks to delete, before that happens.
func (r *Region) Deleting(judge func(Message)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deleting = judge
}

// judge lets the test see what is to be deleted.
func (r *Region) judge(request *http.Request) bool {
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return false
	}
	request.Body = io.NopCloser(bytes.NewReader(body))
	var in struct {
		Entries []struct{ ReceiptHandle string }
	}
	if json.Unmarshal(body, &in) != nil {
		return true // the peer will say what is wrong
	}
	for _, e := range in.Entries {
		r.mu.Lock()
		m, known := r.received[e.ReceiptHandle]
		judge := r.deleting
		r.mu.Unlock()
		if known && judge != nil {
			judge(m)
		}
	}
	return true
}

// observe keeps what consumers receive.
func (r *Region) observe(answer *http.Response) error {
	if !strings.HasSuffix(answer.Request.Header.Get("X-Amz-Target"), ".ReceiveMessage") {
		return nil
	}
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	_ = answer.Body.Close() // it was read to the end
	answer.Body = io.NopCloser(bytes.NewReader(body))
	var out struct{ Messages []received }
	if json.Unmarshal(body, &out) != nil {
		return nil // the consumer will say what is wrong
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range out.Messages {
		r.received[m.ReceiptHandle] = m.message()
	}
	return nil
}

// Received are the messages that consumers have received so far, each as often as it was.
func (r *Region) Received() []Message {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []Message
	for _, m := range r.received {
		all = append(all, m)
	}
	return all
}

// Reveal lets others see messages at once that consumers hold, as if their visibility had been lost. What has been
// revealed or deleted since stays as it is.
func (r *Region) Reveal(t lab.TB, messages ...Message) {
	t.Helper()
	for _, m := range messages {
		_ = r.peer.hide(t.Context(), r.QueueURL, m.Handle, 0)
	}
}
