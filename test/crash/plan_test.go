package crash_test

import (
	"math/rand/v2"
	"time"

	"github.com/nth-project/nth/pkg/imds/imdstest"
	"github.com/nth-project/nth/test/internal/faultproxy"
)

// A plan is what one round does.
type plan struct {
	// The kills of each stage, one after the other.
	drain, rest, withdraw []kill
	// What breaks in the drain, and in the rest.
	broken, brokenLater trouble
}

// A trouble is what breaks for a moment; the zero value is nothing.
type trouble struct {
	metadata imdstest.Fault
	api      faultproxy.Fault
}

func newTrouble(r *rand.Rand) trouble {
	var b trouble
	if r.IntN(3) == 0 {
		kinds := imdstest.Kinds()
		b.metadata = imdstest.Fault{Kind: kinds[r.IntN(len(kinds))], For: moment(r)}
	}
	if r.IntN(3) == 0 {
		kinds := faultproxy.Kinds()
		b.api = faultproxy.Fault{Kind: kinds[r.IntN(len(kinds))], For: moment(r)}
	}
	return b
}

// moment is for how long something is broken.
func moment(r *rand.Rand) time.Duration { return time.Duration(100+r.IntN(2400)) * time.Millisecond }

func (b trouble) begin(l *lane) {
	if b.metadata.For > 0 {
		l.imds.Fault(b.metadata)
	}
	if b.api.For > 0 {
		l.proxy.Fault(b.api)
	}
}

// A kill comes when so many things have happened since nth started or the stage began, or the stage is over, and then
// some time later.
type kill struct {
	after int
	delay time.Duration
	// reboot tells that the machine is rebooted, too: nth comes back in another boot.
	reboot bool
}

const (
	// A drain of the pods of a round, with the start of nth, makes about thirty things happen, and a withdrawal
	// about four. Some kills are to come when all is over.
	happenDraining    = 32
	happenWithdrawing = 5
	longestDelay      = 50 * time.Millisecond
)

func newPlan(r *rand.Rand) plan {
	return plan{
		drain:    newKills(r, 1+r.IntN(2), happenDraining),
		rest:     newKills(r, r.IntN(2), 4),
		withdraw: newKills(r, r.IntN(3), happenWithdrawing),
		broken:   newTrouble(r), brokenLater: newTrouble(r),
	}
}

func newKills(r *rand.Rand, count, happen int) []kill {
	var kills []kill
	for range count {
		k := kill{after: r.IntN(happen + 1), delay: time.Duration(r.Int64N(int64(longestDelay)))}
		if r.IntN(3) == 0 { // much is decided early, and quickly
			k = kill{after: r.IntN(6), delay: k.delay / 10}
		}
		k.reboot = r.IntN(5) == 0
		kills = append(kills, k)
	}
	return kills
}
