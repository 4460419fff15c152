// Package kube is how nth and nth-queue reach the API server: the limits of all requests, and the connections that carry them.
// It knows nothing of nodes and pods, nor where a credential comes from. Newcomers begin with this file.
package kube

import "time"

// The limits of requests to the API server. An outer limit exceeds the sum of those that it contains; limits_test.go lists what
// contains what. A connection is made apart from the requests that wait for it: a request that is given up leaves it to the next one.
const (
	// Dial bounds the lookup of the API server's name and the TCP connection. It contains two silent nameservers, which the resolver gives
	// up after 5 s each (resolv.conf(5), "timeout"). Addresses of a name share it: one that is dead leaves time for the next.
	Dial = 12 * time.Second
	// TLS bounds the handshake.
	TLS = 5 * time.Second

	// Read bounds an attempt to read, from the request to the whole answer. After three reads that hang, nth makes a new connection. Most of
	// a notice of two minutes is left then.
	Read = 12 * time.Second

	// Webhook is the longest that one admission webhook may take, and WebhookUsual what it may take by default. After that the API server
	// continues without the webhook, or refuses the request. They are Kubernetes' limits (timeoutSeconds, admissionregistration.k8s.io/v1).
	Webhook      = 30 * time.Second
	WebhookUsual = 10 * time.Second
	// Write bounds a write that no hard deadline presses. Contains Webhook.
	Write = 35 * time.Second
	// WritePressed bounds a write shortly before a hard deadline. Contains WebhookUsual.
	WritePressed = 12 * time.Second

	// Watch is how long the API server keeps a watch open, and WatchEnd how long the client does. Contains Watch.
	Watch    = 10 * time.Second
	WatchEnd = 12 * time.Second

	// Ping is how long a connection may be silent before it is tested with a ping of HTTP/2, and PingAnswer how long the answer may
	// take before the connection is closed.
	Ping       = 5 * time.Second
	PingAnswer = 5 * time.Second
	// Idle is how long an unused connection stays open. The API server closes it after the same time.
	Idle = 90 * time.Second
	// WarmUp is the interval of the requests that keep a connection open and a credential fresh. Idle contains it, a tenth of jitter
	// and the longest read.
	WarmUp = 50 * time.Second

	// Plugin bounds a run of an exec plugin. The AWS CLI needs a second, and more if the metadata service or STS is slow. PluginChild is how
	// long nth waits for the plugin's output to be closed once the plugin has ended: a child process may keep it open.
	Plugin      = 20 * time.Second
	PluginChild = time.Second
)

// WriteLimit returns the limit of a write when left is the time until a hard deadline. It is a tenth of that time, but at least WritePressed and
// at most Write. So one connection that hangs does not use up the time.
func WriteLimit(left time.Duration) time.Duration {
	return min(Write, max(WritePressed, left/10))
}
