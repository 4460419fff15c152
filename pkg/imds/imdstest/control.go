package imdstest

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/imds/standin"
)

// ControlPath is where a Server serves its control API.
const ControlPath = "/nth-imds/"

// State is a simulator's state, as it is served at ControlPath.
type State struct {
	// Announced has the documents that announce something, by path.
	Announced map[string]string `json:"announced"`
	// Waiting describes the delayed changes, and Faults the active faults.
	Waiting     []string `json:"waiting"`
	Faults      []string `json:"faults"`
	ValidTokens int      `json:"validTokens"`
	Requests    Counts   `json:"requests"`
}

// Control returns the control API, to be served at ControlPath. It needs no token, meets no fault, and answers only to
// the machine that it runs on. Parameters are in the query; each change can be delayed with after=DURATION.
//
//	GET    /nth-imds/             the State, as JSON
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
		"DELETE maintenance": s.parseWithdrawal,
		"DELETE all":         fixed("everything withdrawn", s.withdrawAll),
		"DELETE fault":       fixed("all faults lifted", s.Lift),
		"DELETE tokens":      fixed("all tokens expired", s.ExpireTokens),
		"DELETE document":    s.parseUnsetDocument,
	} {
		var method, name string
		_, _ = fmt.Sscan(route, &method, &name)
		mux.HandleFunc(method+" "+ControlPath+name, s.serveChange(parse))
	}
	return loopbackOnly(mux)
}

// change is a valid request for a change.
type change struct {
	text  string
	apply func()
}

// serveChange answers with one line: what was done, or what is wrong with the request.
func (s *Simulator) serveChange(parse func(*http.Request) (change, error)) http.HandlerFunc {
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

// withdrawAll withdraws all announcements, also delayed ones.
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

// loopbackOnly refuses other machines, wherever the simulator listens.
func loopbackOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// As for everything on this port: no idle connection outlives a fault that closes it.
		w.Header().Set("Connection", "close")
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		if ip, err := netip.ParseAddr(host); err != nil || !ip.Unmap().IsLoopback() {
			http.Error(w, "the control API answers only to the machine that it runs on", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// duration parses a parameter such as in=90s. Negative durations make no sense for any of them.
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

// The words that EC2 uses. The control API accepts no others, so that people are told of a typing error. Tests that need
// others use a Simulator's methods or the document route.
var (
	spotActions      = []string{"terminate", "stop", "hibernate"}
	maintenanceCodes = []string{
		"instance-reboot", "system-reboot", "system-maintenance", "instance-retirement", "instance-stop",
	}
	maintenanceStates = []string{"active", "canceled", "completed"}
	lifecycleStates   = []string{
		"Detached", "InService", "Standby", "Terminated",
		"Warmed:Hibernated", "Warmed:Running", "Warmed:Stopped", "Warmed:Terminated",
	}
)

// How long before EC2 acts it gives notice, and how long maintenance takes, by default.
const (
	spotNotice        = 2 * time.Minute
	maintenanceNotice = time.Hour
	maintenanceLength = 2 * time.Hour
)

func (s *Simulator) parseSpot(r *http.Request) (change, error) {
	q := r.URL.Query()
	action, err := oneOf("action", q.Get("action"), "terminate", spotActions)
	if err != nil {
		return change{}, err
	}
	in, err := duration(q, "in", spotNotice)
	if err != nil {
		return change{}, err
	}
	return change{
		text:  fmt.Sprintf("spot interruption: %s %v after the notice", action, in),
		apply: func() { s.SetSpot(action, time.Now().Add(in)) },
	}, nil
}

func (s *Simulator) parseRebalance(*http.Request) (change, error) {
	return change{text: "rebalance recommendation", apply: func() { s.SetRebalance(time.Now()) }}, nil
}

func (s *Simulator) parseLifecycle(r *http.Request) (change, error) {
	state, err := oneOf("state", r.URL.Query().Get("state"), "", lifecycleStates)
	if err != nil {
		return change{}, err
	}
	return change{
		text:  "target lifecycle state: " + state,
		apply: func() { s.SetLifecycleState(state) },
	}, nil
}

func (s *Simulator) parseMaintenance(r *http.Request) (change, error) {
	q := r.URL.Query()
	event := MaintenanceEvent{EventId: q.Get("id")}
	if known := s.isScheduled(event.EventId); !known || q.Has("code") {
		code, err := oneOf("code", q.Get("code"), "", maintenanceCodes)
		if err != nil {
			return change{}, err
		}
		event.Code = code
	}
	state, err := oneOf("state", q.Get("state"), "active", maintenanceStates)
	if err != nil {
		return change{}, err
	}
	event.State = state
	in, err := duration(q, "in", maintenanceNotice)
	if err != nil {
		return change{}, err
	}
	length, err := duration(q, "for", maintenanceLength)
	if err != nil {
		return change{}, err
	}
	if event.EventId == "" {
		event.EventId = fmt.Sprintf("instance-event-0%016x", rand.Uint64())
	}
	// An event that is only said to be over keeps its times.
	keepTimes := event.Code == "" && !q.Has("in")
	return change{
		text: strings.TrimSuffix(fmt.Sprintf("maintenance %s: %s %s", event.EventId, state, event.Code), " "),
		apply: func() {
			if !keepTimes {
				event.NotBefore = time.Now().Add(in)
				event.NotAfter = event.NotBefore.Add(length)
			}
			s.AddMaintenance(event)
		},
	}, nil
}

func (s *Simulator) isScheduled(id string) bool {
	s.announcing.Lock()
	defer s.announcing.Unlock()
	return indexOf(s.scheduled, id) >= 0
}

func (s *Simulator) parseWithdrawal(r *http.Request) (change, error) {
	q := r.URL.Query()
	id := q.Get("id")
	if id != "" && !s.isScheduled(id) {
		return change{}, fmt.Errorf("no maintenance event %q is scheduled", id)
	}
	history, err := oneOf("history", q.Get("history"), "yes", []string{"yes", "no"})
	if err != nil {
		return change{}, err
	}
	text := "all scheduled maintenance withdrawn"
	if id != "" {
		text = "maintenance " + id + " withdrawn"
	}
	return change{text: text, apply: func() { s.WithdrawMaintenance(id, history == "no") }}, nil
}

func (s *Simulator) parseFault(r *http.Request) (change, error) {
	q := r.URL.Query()
	kind, err := oneOf("kind", q.Get("kind"), "", kindNames())
	if err != nil {
		return change{}, err
	}
	fault := Fault{Kind: Kind(kind), Path: q.Get("path")}
	if fault.Over, err = duration(q, "over", 0); err != nil {
		return change{}, err
	}
	if fault.For, err = duration(q, "for", 0); err != nil {
		return change{}, err
	}
	if fault.Status, err = number(q.Get("status"), "status", 0, 400, 599); err != nil {
		return change{}, err
	}
	if fault.Times, err = number(q.Get("times"), "times", 0, 1, 1<<30); err != nil {
		return change{}, err
	}
	if fault.Kind == Refuse && fault.For == 0 {
		return change{}, fmt.Errorf("refuse also closes the port to whoever would lift it: say for how long, such as for 12s")
	}
	fault = fault.complete()
	return change{text: "fault: " + fault.String(), apply: func() { s.Fault(fault) }}, nil
}

func kindNames() []string {
	var names []string
	for _, kind := range Kinds() {
		names = append(names, string(kind))
	}
	return names
}

// oneOf parses a parameter that takes one of a few words.
func oneOf(name, text, otherwise string, words []string) (string, error) {
	if text == "" {
		text = otherwise
	}
	if !slices.Contains(words, text) {
		return "", fmt.Errorf("%s is %q: want one of %s", name, text, strings.Join(words, ", "))
	}
	return text, nil
}

func number(text, name string, otherwise, least, most int) (int, error) {
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > most {
		return 0, fmt.Errorf("%s is %q: want a number from %d to %d", name, text, least, most)
	}
	return n, nil
}

// delayed are the delayed changes, numbered in the order in which they were requested.
type delayed struct {
	mu      sync.Mutex
	last    int
	waiting map[int]delayedChange
}

type delayedChange struct {
	text  string
	timer *time.Timer
}

// add runs change after a while.
func (d *delayed) add(after time.Duration, text string, change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.waiting == nil {
		d.waiting = map[int]delayedChange{}
	}
	d.last++
	number := d.last
	timer := time.AfterFunc(after, func() {
		if d.remove(number) {
			change()
		}
	})
	d.waiting[number] = delayedChange{text: text, timer: timer}
}

// remove reports whether a change was still waiting.
func (d *delayed) remove(number int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, waits := d.waiting[number]
	delete(d.waiting, number)
	return waits
}

// stop drops all changes.
func (d *delayed) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, w := range d.waiting {
		w.timer.Stop()
	}
	clear(d.waiting)
}

func (d *delayed) list() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var texts []string
	for _, number := range slices.Sorted(maps.Keys(d.waiting)) {
		texts = append(texts, d.waiting[number].text)
	}
	return texts
}
