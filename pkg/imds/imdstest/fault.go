package imdstest

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/nth-project/nth/pkg/imds/standin"
)

// Kind is one way in which the metadata service can break.
type Kind string

// The kinds of faults.
const (
	// Reset begins an answer and then resets the connection.
	Reset Kind = "reset"
	// Hang accepts the request and answers it, properly, only once the fault is lifted.
	Hang Kind = "hang"
	// Slow sends the right answer byte by byte over the time Fault.Over.
	Slow Kind = "slow"
	// Status answers with the HTTP status Fault.Status.
	Status Kind = "status"
	// Unauthorized refuses every token with 401. Tokens are still handed out.
	Unauthorized Kind = "401"
	// Garbage answers 200 with random bytes that are not JSON.
	Garbage Kind = "garbage"
	// Oversized answers 200 with a body that has 1 GiB and looks like the beginning of a JSON list to its end.
	Oversized Kind = "oversized"
	// TokenDown answers requests for a token with Fault.Status, 500 unless given; all else works. For a token
	// endpoint that hangs or resets, use Hang or Reset with the Path /latest/api/token.
	TokenDown Kind = "token-down"
	// Refuse closes the port, so that connections are refused, and opens the same port again when lifted. It holds for
	// all paths, and needs a Server: a bare Simulator resets connections instead.
	Refuse Kind = "refuse"
)

// Kinds lists all kinds of faults.
func Kinds() []Kind {
	return []Kind{Reset, Hang, Slow, Status, Unauthorized, Garbage, Oversized, TokenDown, Refuse}
}

// Fault is one breakage. Several can be set; a request meets the one that was set last among those that match it.
type Fault struct {
	Kind Kind
	// Path limits the fault to documents below it: "/latest/meta-data/spot" or "meta-data/spot". Empty means all,
	// requests for tokens too.
	Path string
	// Status is the status that Status and TokenDown answer with; 500 unless given.
	Status int
	// Over is how long a Slow answer takes; 30 seconds unless given.
	Over time.Duration
	// For is when the fault lifts itself; never unless given.
	For time.Duration
	// Times is how many requests the fault meets; any number unless given. Later ones are answered. It does not count
	// for Refuse, which sees no requests.
	Times int
}

// String describes the fault in a few words.
func (f Fault) String() string {
	text := string(f.Kind)
	switch f.Kind {
	case Status, TokenDown:
		text += fmt.Sprintf(" %d", f.Status)
	case Slow:
		text += fmt.Sprintf(" over %v", f.Over)
	}
	if f.Path != "" && f.Kind != TokenDown {
		text += " on " + f.Path
	}
	if f.For > 0 {
		text += fmt.Sprintf(" for %v", f.For)
	}
	switch {
	case f.Times == 1:
		text += ", once"
	case f.Times > 1:
		text += fmt.Sprintf(", %d times", f.Times)
	}
	return text
}

// complete fills in defaults.
func (f Fault) complete() Fault {
	switch {
	case (f.Kind == Status || f.Kind == TokenDown) && f.Status == 0:
		f.Status = http.StatusInternalServerError
	case f.Kind == Slow && f.Over <= 0:
		f.Over = 30 * time.Second
	}
	if f.Kind == TokenDown {
		f.Path = "/latest/api/token"
	}
	return f
}

func (f Fault) meets(r *http.Request) bool {
	_, path := standin.SplitVersion(r.URL.Path)
	token := path == "api/token"
	if f.Kind == Unauthorized && token {
		return false
	}
	prefix := standin.DocumentPath(f.Path)
	return prefix == "" || path == prefix || strings.HasPrefix(path, prefix+"/")
}

// Fault breaks the service until Lift, or for as long as the fault says.
func (s *Simulator) Fault(f Fault) {
	f = f.complete()
	s.faults.add(f, s.lift)
	s.faultsChanged()
	s.tellChange("fault: %s", f)
}

// Lift repairs the service: no fault is left, and requests that hang are answered.
func (s *Simulator) Lift() {
	for _, f := range s.faults.all() {
		s.lift(f)
	}
}

// Faults lists the faults that are set.
func (s *Simulator) Faults() []Fault {
	set := s.faults.all()
	list := make([]Fault, len(set))
	for i, f := range set {
		list[i] = f.Fault
	}
	return list
}

func (s *Simulator) lift(f *setFault) {
	if s.faults.remove(f) {
		s.faultsChanged()
		s.tellChange("fault lifted: %s", f)
	}
}

func (s *Simulator) faultsChanged() {
	s.watching.Lock()
	reconcile := s.onFaults
	s.watching.Unlock()
	if reconcile != nil {
		reconcile()
	}
}

// refusing says whether connections are to be refused now.
func (s *Simulator) refusing() bool {
	return slices.ContainsFunc(s.faults.all(), func(f *setFault) bool { return f.Kind == Refuse })
}
