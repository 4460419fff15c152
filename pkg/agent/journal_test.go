package agent_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/pkg/systemd"
)

// lines are what the journal says of transitions, each with its fields, sorted.
func lines(dryRun bool, transitions ...state.Transition) []string {
	log, hook := logtest.NewNullLogger()
	j := agent.NewJournal(logrus.NewEntry(log), dryRun)
	for _, t := range transitions {
		j.OnTransition(t)
	}
	var all []string
	for _, said := range hook.AllEntries() {
		text := said.Level.String() + ": " + said.Message
		for _, name := range slices.Sorted(maps.Keys(said.Data)) {
			text += fmt.Sprintf(" %s=%v", name, said.Data[name])
		}
		all = append(all, text)
	}
	return all
}

func TestAMessageHasTheFieldsOfItsEventAndOfNothingElse(t *testing.T) {
	t.Parallel()
	spot := state.Entry{Event: event.Event{ID: "a", Kind: event.SpotInterruption}, Phase: state.Draining}
	ofSpot := " NTH_EVENT_ID=a NTH_EVENT_KIND=spot-interruption"
	gone := errors.New("it is gone")
	for name, row := range map[string]struct {
		told state.Transition
		id   string
		want string
	}{
		"of no event": {state.Transition{Kind: state.Started}, systemd.Started, "info: watching for interruptions %s"},
		"of a kind": {
			state.Transition{Kind: state.SourceStalled, Entry: state.Entry{Event: event.Event{Kind: event.Shutdown}}}, systemd.SourceTrouble,
			"error: event source stalled; waiting for the service manager to restart nth %s NTH_EVENT_KIND=shutdown",
		},
		"of a node, and an event whose kind is not known": {
			state.Transition{Kind: state.NodeExcluded, Node: "node-a", Entry: state.Entry{Event: event.Event{ID: "a"}, Phase: state.Cordoned}},
			systemd.Cordoned,
			"info: excluded the node from external load balancers %s NTH_EVENT_ID=a NTH_EVENT_KIND= NTH_NODE=node-a NTH_PHASE=cordoned",
		},
		"of a pod": {
			state.Transition{Kind: state.PodEvicted, Entry: spot, Pod: "default/web"}, systemd.PodEvicted,
			"info: evicted default/web %s" + ofSpot + " NTH_PHASE=draining NTH_POD=default/web",
		},
		"of an event whose phase says nothing, as it may be over": {
			state.Transition{Kind: state.Missed, Entry: spot}, systemd.EventWithdrawn,
			"info: spot-interruption: no longer announced; waiting to confirm before undoing anything %s" + ofSpot,
		},
		"of an event whose phase says nothing, as there is nothing to undo": {
			state.Transition{Kind: state.ClosedWith, Entry: state.Entry{Event: spot.Event, Phase: state.Closed, Ending: state.Withdrawn}},
			systemd.EventWithdrawn,
			"info: spot-interruption: withdrawn; nothing to undo %s" + ofSpot,
		},
		"of an event whose phase says nothing, as it is over": {
			state.Transition{Kind: state.CalledBack, Entry: spot, Action: string(policy.Drain)}, systemd.EventWithdrawn,
			"info: stopping the drain for spot-interruption: no longer needed %s" + ofSpot,
		},
		"of a step that ends with the process": {
			state.Transition{Kind: state.CalledBack, Entry: spot, Action: string(policy.Drain), Outcome: state.ProcessEnds}, systemd.Stopping,
			"info: the drain for spot-interruption is not finished; it continues when nth starts again %s" + ofSpot + " NTH_PHASE=draining",
		},
		"of an event whose phase says nothing, as it is made up": {
			state.Transition{Kind: state.CordonAdopted, Entry: spot}, systemd.EventSeen,
			"warning: adopting our cordon, missing from the record %s" + ofSpot,
		},
		"with an error": {
			state.Transition{Kind: state.Failed, Entry: spot, Action: string(policy.Drain), Err: gone}, systemd.DrainIncomplete,
			"error: the drain failed; retrying %s" + ofSpot + " NTH_PHASE=draining error=it is gone",
		},
		"with an error that the text has": {
			state.Transition{Kind: state.IdentityWaiting, Err: gone}, systemd.IdentityWaiting,
			"warning: waiting for the kubelet's credential: it is gone %s",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want := []string{fmt.Sprintf(row.want, systemd.FieldMessageID+"="+row.id)}
			if said := lines(false, row.told); !slices.Equal(said, want) {
				t.Errorf("it says\n%q\nwant\n%q", said, want)
			}
		})
	}
}

func TestAMessageSaysWhatBelongsToIt(t *testing.T) {
	t.Parallel()
	draining := state.Entry{Phase: state.Draining}
	drain, cordon := string(policy.Drain), string(policy.Cordon)
	for name, row := range map[string]struct {
		dryRun bool
		told   state.Transition
		want   string // "" is nothing
	}{
		"a drain without a deadline": {
			false, state.Transition{Kind: state.Begun, Entry: draining, Action: drain, Reason: "why"}, "draining the node: why (no deadline)",
		},
		"a drain that has its node cordoned only": {false, state.Transition{Kind: state.Begun, Entry: state.Entry{Phase: state.Cordoned}, Action: drain}, ""},
		"a cordon beside a drain":                 {false, state.Transition{Kind: state.Begun, Entry: draining, Action: cordon}, ""},
		"how long a cordon took, to a millisecond": {
			false, state.Transition{Kind: state.NodeClosed, Took: 1234567 * time.Microsecond}, "cordoned the node after 1.235s",
		},
		"a drain of which nothing is known": {
			false, state.Transition{Kind: state.Done, Action: drain}, "drained: 0 pods evicted, 0 deleted, 0 left in place",
		},
		"a dry run of which nothing is known": {
			true, state.Transition{Kind: state.Done, Action: drain},
			"dry run: the node would have been cordoned and drained of 0 pods, 0 left alone",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log, hook := logtest.NewNullLogger()
			agent.NewJournal(logrus.NewEntry(log), row.dryRun).OnTransition(row.told)
			said := ""
			if last := hook.LastEntry(); last != nil {
				said = last.Message
			}
			if said != row.want {
				t.Errorf("it says %q; want %q", said, row.want)
			}
		})
	}
}

func TestTheReasonOfAnOutageIsSaidOnceInEachOutage(t *testing.T) {
	t.Parallel()
	kind := state.Entry{Event: event.Event{Kind: event.Shutdown}}
	lost := state.Transition{Kind: state.SourceLost, Entry: kind, Err: errors.New("no answer")}
	back := state.Transition{Kind: state.SourceBack, Entry: kind}
	if said := lines(false, lost, lost, back, lost); len(said) != 3 {
		t.Errorf("it says %q; want the reason, the end, and the reason once more", said)
	}
}
