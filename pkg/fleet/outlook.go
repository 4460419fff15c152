package fleet

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/ec2"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/systemd"
)

// Schedule knows what EC2 has scheduled for instances, and whose status checks fail. Where IAM does not allow to ask, an error is
// instances.ErrRefused.
type Schedule interface {
	// Status asks about one instance; known is false if EC2 does not know it.
	Status(ctx context.Context, id string) (found ec2.Status, known bool, err error)
	// Notable asks for all instances of the region, by ID, for which events are scheduled and, with checks, for those whose status
	// checks fail.
	Notable(ctx context.Context, checks bool) (map[string]ec2.Status, error)
}

const (
	// lookPause is between two looks at all that EC2 tells of, and refusedPause where it refuses to.
	lookPause, refusedPause = time.Minute, 10 * time.Minute
	// tendPause is between two looks at what is known.
	tendPause = 5 * time.Second
	// listing is for how long EC2's list may be behind what was announced, and what was in it must have been missing to be over.
	listing = 15 * time.Minute
)

// outlook is what EC2 has said last of all instances, and what the fleet makes of it.
type outlook struct {
	mu      sync.Mutex
	said    map[string]ec2.Status // by instance: what was notable
	looked  time.Time             // when the last good look began; zero if EC2 refuses, or was not asked yet
	trouble string                // why the last look was none; that was said
	first   map[string]time.Time  // when something was first noticed
	plans   map[string]*plan
}

func newOutlook() *outlook {
	return &outlook{said: map[string]ec2.Status{}, first: map[string]time.Time{}, plans: map[string]*plan{}}
}

// plan is what has come of an event that EC2 lists, at one node. It is the message of its tasks.
type plan struct {
	mu         sync.Mutex
	busy, done bool
	deadline   time.Time
	begins     time.Time     // by the rules
	asks       policy.Action // by the rules
	next       time.Time     // not before then
	tries      int
}

// begin begins a task, unless there is one, the last has come to its end for that deadline and what the rules ask for, or another attempt is
// not due, which it is when other rules have it begin at another time. pause is how long it is left alone if it fails.
func (p *plan) begin(deadline, begins time.Time, asks policy.Action) (pause time.Duration, begun bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if (!deadline.Equal(p.deadline) || asks != p.asks) && !p.busy {
		p.done, p.deadline, p.asks, p.next, p.tries = false, deadline, asks, time.Time{}, 0
	}
	if !begins.Equal(p.begins) && !p.busy {
		p.begins, p.next = begins, time.Time{}
	}
	if p.busy || p.done || time.Now().Before(p.next) {
		return 0, false
	}
	p.busy = true
	p.tries++
	return planPause(p.tries), true
}

// impatient is how often something is tried that is worth the pauses of a message, and longestPlan the longest pause after that: what does
// not work out stays listed for as long as EC2 likes, and no count of receipts puts an end to it.
const impatient, longestPlan = 10, time.Hour

// planPause is how long something is left alone that has failed so many times.
func planPause(tries int) time.Duration {
	return min(retryPause(tries)<<min(max(tries-impatient, 0), impatient), longestPlan)
}

// Done implements Message.
func (p *plan) Done() { p.end(true, 0) }

// Return implements Message.
func (p *plan) Return(after time.Duration) { p.end(false, after) }

func (p *plan) end(done bool, after time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy, p.done, p.next = false, done, time.Now().Add(after)
}

// plan returns what is known to have come of something at a node.
func (o *outlook) plan(node, what string) *plan {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := node + " " + what
	if o.plans[key] == nil {
		o.plans[key] = &plan{}
	}
	return o.plans[key]
}

// of is what EC2 has said of an instance; known is false while EC2 has said nothing of any, and for a node that does not tell its instance.
func (o *outlook) of(instance string) (said ec2.Status, known bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if instance == "" {
		return ec2.Status{}, false
	}
	return o.said[instance], !o.looked.IsZero()
}

// heed takes in what EC2 has just said of one instance.
func (o *outlook) heed(instance string, said ec2.Status) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(said.Planned) == 0 && said.Impaired == "" {
		delete(o.said, instance)
		return
	}
	o.said[instance] = said
}

// lasting is for how long something has been so, by good looks, if it is so now.
func (o *outlook) lasting(what string, now bool) time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !now {
		delete(o.first, what)
		return 0
	}
	if o.first[what].IsZero() {
		o.first[what] = o.looked
	}
	return o.looked.Sub(o.first[what])
}

// impaired is at the end of what is first noticed of an instance whose status checks fail.
const impaired = " impaired"

// failed is for how long a status check of an instance had failed by the last good look: nobody knows what has become of it since.
func (o *outlook) failed(instance string, said ec2.Status) time.Duration {
	lasting := o.lasting(instance+impaired, true)
	o.mu.Lock()
	defer o.mu.Unlock()
	if !said.Since.IsZero() {
		lasting = o.looked.Sub(said.Since)
	}
	return lasting
}

// replace takes in a good look, and forgets the plans of what it does not show, and since when the checks have failed that pass.
func (o *outlook) replace(said map[string]ec2.Status, at time.Time) (recovered bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	recovered = o.trouble != ""
	o.said, o.looked, o.trouble = said, at, ""
	maps.DeleteFunc(o.first, func(what string, _ time.Time) bool {
		instance, check := strings.CutSuffix(what, impaired)
		return check && said[instance].Impaired == ""
	})
	maps.DeleteFunc(o.plans, func(_ string, p *plan) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return !p.busy && at.Sub(p.next) > forgetting
	})
	return recovered
}

// forgetting is when a plan is forgotten with which nothing has happened since. What it was for is in the Node's notes.
const forgetting = time.Hour

// fails takes in that EC2 could not be asked, and tells whether that is news.
func (o *outlook) fails(err error) (news bool) {
	refused := errors.Is(err, ec2.ErrRefused)
	why := "trouble"
	o.mu.Lock()
	defer o.mu.Unlock()
	if refused {
		why = "refused"
		o.said, o.looked = map[string]ec2.Status{}, time.Time{}
	}
	news = o.trouble != why
	o.trouble = why
	return news
}

// follow keeps up with what EC2 tells of, and with what the nodes are closed for, until ctx ends.
func (f *Fleet) follow(ctx context.Context) {
	var next time.Time
	ticks := time.NewTicker(tendPause)
	defer ticks.Stop()
	for ctx.Err() == nil {
		if !time.Now().Before(next) {
			next = time.Now().Add(f.survey(ctx))
		}
		f.tendAll()
		select {
		case <-ctx.Done():
		case <-ticks.C:
		}
	}
}

// survey asks EC2 for all that is notable, and returns when to do so again.
func (f *Fleet) survey(ctx context.Context) time.Duration {
	checks := !f.ignores(event.StatusCheck)
	if f.opts.Schedule == nil || !checks && f.ignores(event.ScheduledMaintenance) {
		return lookPause
	}
	at := time.Now()
	said, err := f.opts.Schedule.Notable(ctx, checks)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		return f.unasked(err)
	case f.outlook.replace(said, at):
		f.opts.Log.WithField(systemd.FieldMessageID, systemd.SourceRecovered).Info("EC2 tells again what it has scheduled")
	}
	return lookPause
}

// unasked says, once, that EC2 does not tell what it has scheduled, and returns when to ask again.
func (f *Fleet) unasked(err error) time.Duration {
	refused := errors.Is(err, ec2.ErrRefused)
	if f.outlook.fails(err) {
		log := f.opts.Log.WithField(systemd.FieldMessageID, systemd.SourceTrouble)
		if refused {
			log.Warnf("maintenance is drained for as it was once announced, also if it is canceled or moved since, what was announced before "+
				"nth-queue came is not known, nor are failed status checks: %s", err)
		} else {
			log.Warnf("what EC2 has scheduled stands as it was known: %s", err)
		}
	}
	if refused {
		return refusedPause
	}
	return lookPause
}

// ignores tells whether nothing is to be done about a kind of events, whatever they say.
func (f *Fleet) ignores(kind event.Kind) bool {
	return f.policy().Ignores(record.Entry{Event: event.Event{Kind: kind}})
}
