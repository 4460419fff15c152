package imdstest

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"github.com/nth-project/nth/pkg/imds/standin"
)

// ControlPath is where a Server serves its control API.
const ControlPath = "/nth-imds/"

// State is what a simulator tells about itself at ControlPath.
type State struct {
	// Announced holds the documents that announce something, by path, as they are served.
	Announced map[string]string `json:"announced"`
	// Waiting describes the changes that wait for their time, and Faults the faults in force.
	Waiting []string `json:"waiting"`
	Faults  []string `json:"faults"`
	// ValidTokens is the number of tokens that are accepted now.
	ValidTokens int    `json:"validTokens"`
	Requests    Counts `json:"requests"`
}

// Control returns the control API, to be served at ControlPath. It needs no token, meets no fault, and answers only to
// the machine that it runs on. Parameters are given in the query; each change can be put off with after=DURATION.
//
//	GET    /nth-imds/             what is announced, what waits, faults and counts, as JSON
//	PUT    /nth-imds/spot         action=terminate|stop|hibernate in=DURATION
//	PUT    /nth-imds/rebalance
//	PUT    /nth-imds/maintenance  code= in=DURATION for=DURATION state=active|canceled|completed id=
//	PUT    /nth-imds/lifecycle    state=InService|Terminated|...
//	DELETE /nth-imds/spot, rebalance, lifecycle, all
//	DELETE /nth-imds/maintenance  id= history=no
//	PUT    /nth-imds/fault        kind= path= status= over=DURATION for=DURATION times=
//	DELETE /nth-imds/fault        lifts all faults
//	DELETE /nth-imds/tokens       expires all tokens
//	PUT    /nth-imds/document     path=, the body is the document
//	DELETE /nth-imds/document     path=
func (s *Simulator) Control() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+ControlPath+"{$}", s.serveState)
	for route, parse := range map[string]func(*http.Request) (change, error){
		"PUT spot":           s.parseSpot,
		"PUT rebalance":      s.parseRebalance,
		"PUT maintenance":    s.parseMaintenance,
		"PUT lifecycle":      s.parseLifecycle,
		"PUT fault":          s.parseFault,
		"PUT document":       s.parseDocument,
		"DELETE spot":        fixed("spot interruption withdrawn", s.ClearSpot),
		"DELETE rebalance":   fixed("rebalance recommendation withdrawn", s.ClearRebalance),
		"DELETE lifecycle":   fixed("target lifecycle state withdrawn", s.ClearLifecycleState),
		"DELETE maintenance": s.parseWithdrawMaintenance,
		"DELETE all":         fixed("everything withdrawn", s.withdrawAll),
		"DELETE fault":       fixed("all faults lifted", s.Lift),
		"DELETE tokens":      fixed("all tokens expired", s.ExpireTokens),
		"DELETE document":    s.parseUnsetDocument,
	} {
		var method, name string
		_, _ = fmt.Sscan(route, &method, &name)
		mux.HandleFunc(method+" "+ControlPath+name, s.changing(parse))
	}
	return loopbackOnly(mux)
}

// change is something that was asked for and found to make sense.
type change struct {
	text  string
	apply func()
}

// changing answers with one line: what was done, or what would have been right.
func (s *Simulator) changing(parse func(*http.Request) (change, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		wanted, err := parse(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		after, err := duration(r.URL.Query(), "after", 0)
		switch {
		case err != nil:
			http.Error(w, err.Error(), http.StatusBadRequest)
		case after > 0:
			s.delayed.add(after, fmt.Sprintf("%s, at %s", wanted.text, standin.Timestamp(time.Now().Add(after))), wanted.apply)
			_, _ = fmt.Fprintf(w, "%s, after %v\n", wanted.text, after)
		default:
			wanted.apply()
			_, _ = fmt.Fprintln(w, wanted.text)
		}
	}
}

func (s *Simulator) serveState(w http.ResponseWriter, _ *http.Request) {
	state := State{
		Announced:   map[string]string{},
		Waiting:     s.delayed.list(),
		ValidTokens: s.service.ValidTokens(),
		Requests:    s.Requests(),
	}
	for _, path := range []string{spotPath, rebalancePath, scheduledPath, historyPath, lifecyclePath} {
		if body, found := s.service.Get(path); found && body != "[]" {
			state.Announced[path] = body
		}
	}
	for _, fault := range s.Faults() {
		state.Faults = append(state.Faults, fault.String())
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(state)
}

// withdrawAll makes the instance one for which nothing is announced, or about to be.
func (s *Simulator) withdrawAll() {
	s.delayed.stop()
	s.ClearSpot()
	s.ClearRebalance()
	s.ClearLifecycleState()
	s.WithdrawMaintenance("", false)
}

func (s *Simulator) parseDocument(r *http.Request) (change, error) {
	path := r.URL.Query().Get("path")
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return change{}, fmt.Errorf("reading document %q: %w", path, err)
	}
	return documentChange(path, "set", func() { s.Set(path, string(body)) })
}

func (s *Simulator) parseUnsetDocument(r *http.Request) (change, error) {
	path := r.URL.Query().Get("path")
	return documentChange(path, "removed", func() { s.Unset(path) })
}

func documentChange(path, done string, apply func()) (change, error) {
	if standin.DocumentPath(path) == "" {
		return change{}, fmt.Errorf("no path: want one such as /latest/meta-data/instance-life-cycle")
	}
	return change{text: fmt.Sprintf("document %s %s", standin.DocumentPath(path), done), apply: apply}, nil
}

func fixed(text string, apply func()) func(*http.Request) (change, error) {
	return func(*http.Request) (change, error) { return change{text: text, apply: apply}, nil }
}

// loopbackOnly keeps other machines from changing what a simulator serves, wherever it listens.
func loopbackOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// As for everything on this port, so that no idle connection outlives a fault that closes it.
		w.Header().Set("Connection", "close")
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		if ip, err := netip.ParseAddr(host); err != nil || !ip.Unmap().IsLoopback() {
			http.Error(w, "the control API answers only to the machine that it runs on", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// duration reads a parameter such as in=90s. Negative durations make no sense in any of them.
func duration(q url.Values, name string, otherwise time.Duration) (time.Duration, error) {
	text := q.Get(name)
	if text == "" {
		return otherwise, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%s is %q: want a duration such as 90s or 2m", name, text)
	}
	return d, nil
}
