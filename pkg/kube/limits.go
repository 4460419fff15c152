// Package kube is how nth and nth-queue reach the API server: the limits of all requests, and the connections that carry them.
// It knows nothing of nodes and pods, nor where a credential comes from. Newcomers begin with this file.
package kube

import "time"

// The limits of requests to the API server. An outer limit exceeds the sum of those that it contains; limits_test.go lists what
// contains what. A connection is made apart from the requests that wait for it: a request that is given up leaves it to the next one.
const (
	// Resolve bounds the lookup of the API server's name. The resolver asks a second nameserver when the first has been silent for
	// 5 s (resolv.conf(5), "timeout"), and a third after 10 s.
	Resolve = 12 * time.Second
	// ResolveKnown is how long a lookup may take while addresses of an earlier lookup are known. They are used then.
	ResolveKnown = time.Second
	// Dial bounds the TCP connection to all addresses, which are tried together: three SYNs, at 0, 1 and 3 s.
	Dial = 5 * time.Second
	// TLS bounds the handshake.
	TLS = 5 * time.Second

	// Read bounds the first attempt to read, from the request to the whole answer, and ReadMost any later attempt: the limit doubles
	// with each time-out (ReadLimit). Contains Resolve, Dial and TLS once it has grown.
	Read     = 8 * time.Second
	ReadMost = 30 * time.Second

	// Webhook is the longest that one admission webhook may take, and WebhookUsual what it may take by default, before the API server
	// continues without it or names it (timeoutSeconds, admissionregistration.k8s.io/v1). They are Kubernetes' limits.
	Webhook      = 30 * time.Second
	WebhookUsual = 10 * time.Second
	// Write bounds a write that no hard deadline presses. Contains Webhook.
	Write = 35 * time.Second
	// WritePressed bounds a write that has little time. Contains WebhookUsual.
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

	// Token bounds the making of an EKS token, which asks the metadata service for credentials.
	Token = 5 * time.Second
	// Plugin bounds a run of an exec plugin, and PluginChild how long a child of a plugin that has ended may keep its output open.
	// The AWS CLI needs a second, and more if the metadata service or STS is slow.
	Plugin      = 20 * time.Second
	PluginChild = time.Second
	// Credential bounds the making of a credential by one way and then by another. Contains Token, Plugin and PluginChild.
	Credential = 30 * time.Second
	// Settings bounds a question to Bottlerocket's API for the settings of the cluster.
	Settings = 5 * time.Second
	// File bounds the reading of the kubeconfig and of the files that it names, which may be on a server. Contains Settings.
	File = 8 * time.Second
)

// ReadLimit bounds an attempt to read after so many time-outs in a row: 8, 16 and 30 s.
func ReadLimit(timeouts int) time.Duration {
	return min(Read<<min(max(timeouts, 0), 8), ReadMost)
}

// WriteLimit bounds a write that a hard deadline presses, with so much time left: a connection that hangs must not use it up.
func WriteLimit(left time.Duration) time.Duration {
	return min(Write, max(WritePressed, left/10))
}
