package imds_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/imds"
)

// story is what a source has told of target states, in order.
type story struct {
	mu    sync.Mutex
	lines []string
}

func (s *story) tell(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
}

func (s *story) want(t *testing.T, want ...string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.lines, want) {
		t.Errorf("told\n\t%s\nwant\n\t%s", strings.Join(s.lines, "\n\t"), strings.Join(want, "\n\t"))
	}
	s.lines = nil
}

// follow makes options that tell a story.
func follow(s *story) imds.Options {
	return imds.Options{
		Kinds:     []event.Kind{event.ASGTermination},
		InService: func() { s.tell("in service") },
		Strange:   func(state string, departs bool) { s.tell("strange %s %t", state, departs) },
	}
}

// absent is said for there is no target state.
const absent = ""

func wants(ec2 *service, state string) {
	if state == absent {
		ec2.say(targetStatePath, answer{})
		return
	}
	ec2.say(targetStatePath, answer{body: state})
}

// departing are the codes of what is announced.
func departing(t *testing.T, sink *sink) string {
	t.Helper()
	events, _ := sink.last(event.ASGTermination)
	var codes []string
	for _, ev := range events {
		if ev.State != event.Pending || !strings.HasPrefix(ev.ID, "asg-termination-") {
			t.Errorf("the event is %+v", ev)
		}
		codes = append(codes, ev.Code)
	}
	return strings.Join(codes, " ")
}

func TestWhatATargetStateMeansDependsOnTheOneBefore(t *testing.T) {
	for name, row := range map[string]struct {
		was    bool     // in service before nth was started, in this boot
		states []string // each stands for a while
		want   []string // what is announced in each
		told   []string
	}{
		"taken back to the warm pool, stopped":    {false, []string{"InService", "Warmed:Stopped"}, []string{"", "Warmed:Stopped"}, []string{"in service"}},
		"taken back to the warm pool, hibernated": {false, []string{"InService", "Warmed:Hibernated"}, []string{"", "Warmed:Hibernated"}, []string{"in service"}},
		"taken back to the warm pool, running":    {false, []string{"InService", "Warmed:Running", "InService"}, []string{"", "Warmed:Running", ""}, []string{"in service"}},
		"and taken again": {
			false, []string{"InService", "Warmed:Running", "InService", "Warmed:Running"}, []string{"", "Warmed:Running", "", "Warmed:Running"}, []string{"in service"},
		},
		"prepared in the warm pool":             {false, []string{"Warmed:Stopped"}, []string{""}, nil},
		"prepared, then put into service":       {false, []string{absent, "Warmed:Running", "InService"}, []string{"", "", ""}, []string{"in service"}},
		"ended in the warm pool":                {false, []string{"Warmed:Running", "Warmed:Terminated"}, []string{"", "Warmed:Terminated"}, nil},
		"taken back, and ended there":           {false, []string{"InService", "Warmed:Running", "Warmed:Terminated"}, []string{"", "Warmed:Running", "Warmed:Terminated"}, []string{"in service"}},
		"taken back after a restart of nth":     {true, []string{"Warmed:Stopped"}, []string{"Warmed:Stopped"}, nil},
		"in service since before the restart":   {true, []string{"InService", "Warmed:Stopped"}, []string{"", "Warmed:Stopped"}, nil},
		"on standby, and taken back from there": {false, []string{"InService", "Standby", "Warmed:Stopped"}, []string{"", "", "Warmed:Stopped"}, []string{"in service"}},
		"detached":                              {false, []string{"InService", "Detached", absent}, []string{"", "", ""}, []string{"in service"}},
		"terminated":                            {false, []string{"InService", "Terminated", absent}, []string{"", "Terminated", ""}, []string{"in service"}},
		"the root volume is replaced": {
			false, []string{"InService", "ReplacingRootVolume", "InService"}, []string{"", "ReplacingRootVolume", ""}, []string{"in service", "strange ReplacingRootVolume true"},
		},
		"a state of the future, of three parts": {
			true, []string{"Frozen:Deep:Wait"}, []string{"Frozen:Deep:Wait"}, []string{"strange Frozen:Deep:Wait true"},
		},
		"a state of the future, before service": {false, []string{"Relaxed:Hammock", "Relaxed:Hammock"}, []string{"", ""}, []string{"strange Relaxed:Hammock false"}},
		"told again as a departure": {
			false, []string{"Relaxed:Hammock", "InService", "Relaxed:Hammock", "InService", "Relaxed:Hammock"}, []string{"", "", "Relaxed:Hammock", "", "Relaxed:Hammock"},
			[]string{"strange Relaxed:Hammock false", "in service", "strange Relaxed:Hammock true"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			told := &story{}
			opts := follow(told)
			opts.WasInService = row.was
			ec2 := serve(map[string]string{lifeCyclePath: "on-demand"})
			wants(ec2, row.states[0])
			bubble(t, opts, ec2, func(t *testing.T, sink *sink) {
				for i, state := range row.states {
					wants(ec2, state)
					time.Sleep(10 * time.Second)
					if got := departing(t, sink); got != row.want[i] {
						t.Errorf("in state %q (%d), announced is %q, want %q", state, i, got, row.want[i])
					}
				}
				told.want(t, row.told...)
			})
		})
	}
}

// looks counts the looks at the target state, and answers each with the next of some states; the last one stands.
type looks struct {
	mu     sync.Mutex
	states []string
}

func (l *looks) next() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	state := l.states[0]
	if len(l.states) > 1 {
		l.states = l.states[1:]
	}
	return state
}

// A proxy's word for its own trouble may look like a state.
func TestAnUnknownStateCountsWhenTwoLooksInARowFindIt(t *testing.T) {
	for name, row := range map[string]struct {
		was      bool
		states   []string
		want     string // all that was announced, in order, without repetitions
		troubles bool
	}{
		"found once":                        {false, []string{"InService", "Forbidden", "InService"}, "", false},
		"found now and then":                {false, []string{"InService", "Forbidden", "InService", "Forbidden", "InService"}, "", false},
		"two, each found once":              {false, []string{"InService", "Forbidden", "Unavailable", "InService"}, "", false},
		"found twice":                       {false, []string{"InService", "Frozen", "Frozen", "InService"}, "Frozen", false},
		"found once during a departure":     {false, []string{"InService", "Warmed:Running", "Forbidden", "Warmed:Running"}, "Warmed:Running", false},
		"found at the first look":           {true, []string{"Forbidden", "Warmed:Running"}, "Warmed:Running", true},
		"found at the first two looks":      {true, []string{"Frozen"}, "Frozen", true},
		"found at the first, and no longer": {true, []string{"Forbidden", "InService"}, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			opts := follow(&story{})
			opts.WasInService = row.was
			ec2 := serve(map[string]string{lifeCyclePath: "on-demand"})
			l := &looks{states: row.states}
			ec2.say(targetStatePath, answer{next: l.next})
			bubble(t, opts, ec2, func(t *testing.T, sink *sink) {
				time.Sleep(time.Minute)
				snapshots, troubles := sink.of(event.ASGTermination)
				var got []string
				for _, s := range snapshots {
					for _, ev := range s.events {
						if len(got) == 0 || got[len(got)-1] != ev.Code {
							got = append(got, ev.Code)
						}
					}
				}
				if all := strings.Join(got, " "); all != row.want {
					t.Errorf("announced were %q, want %q", all, row.want)
				}
				if (len(troubles) > 0) != row.troubles {
					t.Errorf("%d troubles, %v", len(troubles), troubles)
				}
			})
		})
	}
}
