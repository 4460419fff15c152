// Package bottlerockettest stands in for Bottlerocket's API server, as far as nth asks it.
package bottlerockettest

import (
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"sync"
)

// API answers for the settings of a host. Its keys are like "settings.kubernetes.api-server".
type API struct {
	mu       sync.Mutex
	settings map[string]string
	asked    []string
	listener net.Listener
	server   *http.Server
}

// Listen serves settings at a socket until Close.
func Listen(socket string, settings map[string]string) (*API, error) {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	a := &API{settings: settings, listener: listener}
	a.server = &http.Server{Handler: a}
	go a.server.Serve(listener) //nolint:errcheck // It ends with Close.
	return a, nil
}

// Close ends it, and removes the socket.
func (a *API) Close() { _ = a.server.Close() }

// Set sets a setting, or removes it if the value is empty.
func (a *API) Set(key, value string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if value == "" {
		delete(a.settings, key)
		return
	}
	a.settings[key] = value
}

// Asked returns the requests so far, as in "GET /settings?keys=...".
func (a *API) Asked() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]string(nil), a.asked...)
}

// ServeHTTP answers "GET /settings?keys=" as the API server does: keys that are not set are passed over, and what is set
// comes as tables within tables, without "settings" itself.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, r.Method+" "+r.URL.String())
	if r.Method != http.MethodGet || r.URL.Path != "/settings" || r.URL.Query().Get("keys") == "" {
		http.Error(w, "Missing input", http.StatusBadRequest)
		return
	}
	answer := map[string]any{}
	for key := range strings.SplitSeq(r.URL.Query().Get("keys"), ",") {
		parts := strings.Split(key, ".")
		value, set := a.settings[key]
		if len(parts) != 3 || parts[0] != "settings" || !set {
			continue
		}
		table, _ := answer[parts[1]].(map[string]any)
		if table == nil {
			table = map[string]any{}
			answer[parts[1]] = table
		}
		table[parts[2]] = value
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // The client may be gone.
}
