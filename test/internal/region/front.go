package region

import (
	"bytes"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
)

// front is the region's address. Requests for SQS go on to the peer.
func (r *Region) front(peer string) http.Handler {
	target, err := url.Parse(peer)
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
		if action == "DeleteMessageBatch" && !r.judge(request) {
			panic(http.ErrAbortHandler)
		}
		forward.ServeHTTP(w, request)
	})
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
	var out struct {
		Messages []struct{ MessageID, ReceiptHandle, Body string }
	}
	if json.Unmarshal(body, &out) != nil {
		return nil // the consumer will say what is wrong
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range out.Messages {
		r.received[m.ReceiptHandle] = Message{m.MessageID, m.Body}
	}
	return nil
}
