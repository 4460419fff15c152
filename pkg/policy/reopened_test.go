package policy_test

import (
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// Somebody who lifts the cordon gives an order for all events that wanted it then, and for no other.
func TestALiftedCordonIsAnOrder(t *testing.T) {
	t.Parallel()
	stop, hibernate, notice := maintenance("a", "instance-stop", time.Hour), hibernation("h", time.Hour), spot("n", 2*time.Minute)
	canceled := inState(stop, event.Canceled)
	cordoning := withAction(event.RebalanceRecommendation, policy.Cordon)
	open := policy.Node{Drained: true}
	decide(t, []decision{
		{name: "a drained node is not closed again", known: known(stop), past: past(entry(stop, state.Drained, reopened)), want: "wait"},
		{name: "nor one that was cordoned", known: known(hibernate), past: past(entry(hibernate, state.Cordoned, reopened)), want: "wait"},
		{name: "nor one that was about to be", known: known(hibernate), past: past(entry(hibernate, state.Cordoning, reopened)), want: "wait"},
		{name: "nor one whose time was too short", known: known(stop), past: past(entry(stop, state.Incomplete, reopened)), want: "wait"},
		{
			name: "a drain goes on for what was there", known: known(stop), now: 10 * time.Minute,
			past: past(entry(stop, state.Draining, reopened, cordoned(time.Minute))),
			want: "drain a by 1h0m0s soft of what was there at 1m0s, open; again at 1h0m0s",
		},
		{
			name: "also if it was lifted before it was ours to see", known: known(stop), now: 10 * time.Minute,
			past: past(entry(stop, state.Draining, reopened, uncordoned, seenAt(time.Minute))),
			want: "drain a by 1h0m0s soft of what was there at 1m0s, open; again at 1h0m0s",
		},
		{
			name: "and is over when that is gone", known: known(stop), node: open,
			past: past(entry(stop, state.Draining, reopened)), want: "wait",
		},
		{
			name: "or when its time is", known: known(stop), now: time.Hour,
			past: past(entry(stop, state.Draining, reopened)), want: "wait",
		},
		{
			name: "of two, what was there when the later was set", known: known(stop, notice), now: time.Minute,
			past: past(entry(stop, state.Draining, reopened), entry(notice, state.Draining, reopened, cordoned(30*time.Second))),
			want: "drain n, a by 2m0s hard by 1h0m0s soft of what was there at 30s, open; again at 2m0s",
		},
		{
			name: "a new event closes the node again", known: known(stop, notice),
			past: past(entry(stop, state.Draining, reopened), entry(notice, state.Seen)),
			want: "drain n, a by 2m0s hard by 1h0m0s soft; again at 2m0s",
		},
		{
			name: "and asks nobody who has had enough", known: known(stop, notice),
			past: past(entry(stop, state.Drained, reopened), entry(notice, state.Seen)), want: "drain n by 2m0s hard; again at 2m0s",
		},
		{
			name: "a new one that is cordoned for does so too, and has no pods go that came since", known: known(stop, rebalance("r")), rules: cordoning,
			past: past(entry(stop, state.Draining, reopened, cordoned(time.Minute)), entry(rebalance("r"), state.Seen)), now: 2 * time.Minute,
			want: "drain a, r (first r) by 1h0m0s soft of what was there at 1m0s; again at 1h0m0s",
		},
		{
			name: "a drain that is only to cordon now does not", known: known(rebalance("a")), rules: cordoning,
			past: past(entry(rebalance("a"), state.Draining, reopened)), want: "wait; again at 1h0m0s",
		},
		{
			name: "what is left is taken back in the end", known: known(canceled),
			past: past(entry(canceled, state.Drained, reopened)), want: "uncordon a (canceled)",
		},
		{
			name: "what is left holds nobody else up", known: known(stop, inState(notice, event.Canceled)),
			past: past(entry(stop, state.Drained, reopened), entry(notice, state.Drained)), want: "uncordon n (canceled)",
		},
		{
			name: "also while a drain goes on, it is nobody's cordon but his who set it", known: known(stop, inState(notice, event.Canceled)),
			past: past(entry(stop, state.Draining, reopened), entry(notice, state.Undoing)), want: "uncordon n (canceled); again at 1h0m0s",
		},
		{
			name: "but a drain does not wait until a machine that has rebooted is Ready", known: known(stop, inState(notice, event.Canceled)),
			past: past(entry(stop, state.Draining, reopened), entry(notice, state.Undoing, before)),
			want: "drain a by 1h0m0s soft of what was there at 0s, open; again at 1h0m0s",
		},
		{
			name: "which it is, so that it takes pods at once", known: known(stop, inState(notice, event.Canceled)), ready: true,
			past: past(entry(stop, state.Draining, reopened), entry(notice, state.Undoing, before)),
			want: "uncordon n (canceled) when ready; again at 1h0m0s",
		},
		{
			name: "nor for what could not be taken back, which is tried again in time", known: known(stop, inState(notice, event.Canceled)), now: time.Second,
			past: past(entry(stop, state.Draining, reopened), entry(notice, state.Undoing, failed(1, 0))),
			want: "drain a by 1h0m0s soft of what was there at 0s, open; again at 2s",
		},
		{
			name: "nor does what is still drained for", known: known(stop, inState(notice, event.Canceled)), node: open,
			past: past(entry(stop, state.Draining, reopened), entry(notice, state.Drained)), want: "uncordon n (canceled)",
		},
		{
			name: "after it came back it is met like a new one", known: known(stop),
			past: past(entry(stop, state.Closed, closed(state.Withdrawn), reopened)), want: "drain a by 1h0m0s soft; again at 1h0m0s",
		},
		{
			name: "while it comes back it stays an order", known: known(stop),
			past: past(entry(stop, state.Undoing, reopened)), want: "wait",
		},
		{
			name: "a cordon that was lifted before it was seen has no age", known: known(rebalance("a")), rules: cordoning,
			past: past(entry(rebalance("a"), state.Cordoning, reopened, uncordoned)), want: "wait",
		},
	})
}

// undone is what the record says after everything was taken back, and was folded on.
func undone(t *testing.T, d decision, overruled bool) policy.Situation {
	t.Helper()
	sit, book := d.situation(), newBook(d.past)
	book.put(d.settings().Undone(sit, overruled)...)
	sit.Past = book.entries()
	for _, e := range sit.Past {
		if e.OnNode {
			t.Errorf("after all was taken back: %s", describeEntries(past(e)))
		}
	}
	return brought(t, d.settings(), sit)
}

func TestWhatTheRecordSaysAfterAllWasTakenBack(t *testing.T) {
	t.Parallel()
	stop, notice, reboot := maintenance("a", "instance-stop", time.Hour), spot("n", 2*time.Minute), maintenance("r", "system-reboot", 48*time.Hour)
	canceled, advice, hibernate := inState(stop, event.Canceled), rebalance("b"), hibernation("h", time.Hour)
	over := entry(canceled, state.Undoing, failed(2, 0))
	telling := rules()
	for _, row := range []struct {
		decision
		overruled bool
	}{
		{decision: decision{name: "what is over is closed", known: known(canceled), past: past(over), want: "a closed canceled"}},
		{overruled: true, decision: decision{name: "also if somebody else was first", known: known(canceled), past: past(over), want: "a closed canceled"}},
		{decision: decision{name: "what was moved begins anew", known: known(reboot), past: past(entry(reboot, state.Undoing, actedFor(0))), want: "r seen"}},
		{overruled: true, decision: decision{name: "also if somebody else was first", known: known(reboot), past: past(entry(reboot, state.Undoing, actedFor(0))), want: "r seen"}},
		{decision: decision{name: "so does what is only told now", rules: telling, known: known(advice), past: past(entry(advice, state.Undoing)), want: "b seen"}},
		{decision: decision{name: "what came back meanwhile is done again", known: known(stop), past: past(entry(stop, state.Draining)), want: "a draining on node"}},
		{
			overruled: true,
			decision:  decision{name: "unless somebody else had lifted it", known: known(stop), past: past(entry(stop, state.Drained)), want: "a drained reopened"},
		},
		{
			overruled: true,
			decision:  decision{name: "which holds also for what is being undone", known: known(stop), past: past(entry(stop, state.Undoing)), want: "a cordoned reopened"},
		},
		{
			overruled: true,
			decision:  decision{name: "and for what only cordons", known: known(hibernate), past: past(entry(hibernate, state.Undoing)), want: "h cordoned reopened"},
		},
		{
			overruled: true,
			decision: decision{
				name: "but not for an event that nobody has closed the node for yet", known: known(canceled, notice),
				past: past(over, entry(notice, state.Draining, uncordoned)), want: "a closed canceled, n draining on node",
			},
		},
		{
			decision: decision{
				name: "an order that was given before stays one", known: known(canceled, notice),
				past: past(over, entry(notice, state.Drained, reopened)), want: "a closed canceled, n drained reopened",
			},
		},
		{
			decision: decision{
				name: "also for one that is still drained for", known: known(canceled, notice), node: policy.Node{},
				past: past(over, entry(notice, state.Draining, reopened)), want: "a closed canceled, n draining reopened",
			},
		},
		{decision: decision{name: "what may be over begins anew if it is back", known: known(), past: past(over, entry(notice, state.Drained, before, missing(0))), want: "a closed canceled, n seen missing since 0s"}},
		{decision: decision{name: "what the last look did not find after a reboot is over", known: known(), now: 2 * time.Hour, past: past(entry(stop, state.Undoing, before, listedHere)), want: "a closed rebooted"}},
		{decision: decision{name: "what has nothing on the node is not touched", known: known(stop), past: past(entry(stop, state.Drained, foreign)), want: "a drained"}},
		{decision: decision{name: "nor what is closed", known: known(), past: past(entry(stop, state.Closed, closed(state.Rebooted))), want: "a closed rebooted"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			if got := describeEntries(undone(t, row.decision, row.overruled).Past); got != row.want {
				t.Errorf("Undone: %s\n   want: %s", got, row.want)
			}
		})
	}
}

// What one event has set on the node and another one needs, is that one's to take back.
func TestWhatIsOnTheNodeIsHandedOver(t *testing.T) {
	t.Parallel()
	stop, notice, last := maintenance("a", "instance-stop", time.Hour), spot("n", time.Hour), termination("t")
	canceled := inState(stop, event.Canceled)
	over := entry(canceled, state.Drained)
	for _, row := range []decision{
		{name: "to one that has none", known: known(canceled, notice), past: past(over, entry(notice, state.Drained, foreign)), want: "a closed canceled, n drained on node"},
		{name: "to one that begins", known: known(canceled, notice), past: past(over, entry(notice, state.Seen)), want: "a closed canceled, n draining on node"},
		{name: "to one that is met at the same time", known: known(canceled, notice), past: past(over), want: "a closed canceled, n draining on node"},
		{name: "to one that may be over", known: known(canceled), past: past(over, entry(notice, state.Drained, foreign, missing(0))), want: "a closed canceled, n drained missing since 0s on node"},
		{
			name: "to all that need it", known: known(canceled, notice, last), past: past(over, entry(notice, state.Drained, foreign), entry(last, state.Drained, foreign)),
			want: "a closed canceled, n drained on node, t drained on node",
		},
		{name: "also from what was only being undone", known: known(canceled, notice), past: past(entry(canceled, state.Undoing), entry(notice, state.Seen)), want: "a closed canceled, n draining on node"},
		{name: "not to one whose cordon was lifted", known: known(canceled, notice), past: past(over, entry(notice, state.Drained, foreign, reopened)), want: "a undoing on node, n drained reopened"},
		{name: "not to one that is only told", known: known(canceled, rebalance("b")), past: past(over, entry(rebalance("b"), state.Seen)), want: "a undoing on node, b seen"},
		{name: "not by one that has none", known: known(canceled, notice), past: past(entry(canceled, state.Drained, foreign), entry(notice, state.Drained, foreign)), want: "a closed canceled, n drained"},
		{
			name: "a guard that knows better corrects it", known: known(canceled, notice), node: foreignNode,
			past: past(over, entry(notice, state.Drained)), want: "a closed canceled, n drained",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			if got := describeEntries(brought(t, row.settings(), row.situation()).Past); got != row.want {
				t.Errorf("Fold: %s\n want: %s", got, row.want)
			}
		})
	}
}
