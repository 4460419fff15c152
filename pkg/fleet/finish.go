package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nth-project/nth/pkg/ec2"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/state"
)

// Finish says what nth-queue does, in place of EC2, once a node is drained for maintenance. Its text is the one in the configuration.
type Finish string

// The ways to finish maintenance. Wait leaves it to EC2.
const (
	Wait      Finish = "wait"
	Reboot    Finish = "reboot"
	StopStart Finish = "stop-start"
	Replace   Finish = "replace"
)

// finishes has the request that carries out maintenance, by its code. A code without a request is left to EC2. That is always so for an
// instance-reboot: EC2 keeps the event if the user reboots the instance.
var finishes = map[Finish]map[string]ec2.Request{
	Reboot: {"system-reboot": ec2.Reboot},
	StopStart: {
		"system-reboot": ec2.Reboot, "instance-stop": ec2.Stop, "instance-retirement": ec2.Stop, "system-maintenance": ec2.Stop,
	},
	Replace: {
		"system-reboot": ec2.Reboot, "instance-stop": ec2.Terminate, "instance-retirement": ec2.Terminate, "system-maintenance": ec2.Terminate,
	},
}

// Requests returns the requests that a Fleet makes with a Finish.
func (f Finish) Requests() (all []ec2.Request) {
	for _, request := range []ec2.Request{ec2.Reboot, ec2.Stop, ec2.Terminate} {
		if slices.Contains(slices.Collect(maps.Values(finishes[f])), request) {
			all = append(all, needs(request)...)
		}
	}
	return all
}

// needs returns a request and those that have to follow it.
func needs(request ec2.Request) []ec2.Request {
	if request == ec2.Stop {
		return []ec2.Request{ec2.Stop, ec2.Start}
	}
	return []ec2.Request{request}
}

// markAnnotation has the mark of a Node as JSON.
const markAnnotation = kube.KeyPrefix + "maintenance-requested"

// mark says that EC2 was asked to carry out a Node's maintenance, or is about to be asked. It is on the Node before the request, and stays as long as
// EC2 lists one of the events. So no leader makes a second request for an event.
type mark struct {
	Events  []string    `json:"events"`
	Request ec2.Request `json:"request"`
	BootID  string      `json:"boot_id"`
	Since   time.Time   `json:"since"`
}

// claims reports whether the node is cordoned for an event for which the mark's request was made. After a later cordon, the event is left to EC2.
func (m mark) claims(event string, on node) bool {
	return slices.Contains(m.Events, event) && on.hasOwnCordon && on.cordon.Names(event) && m.Since.After(on.cordon.Since)
}

// verdict says whether nth-queue may make a request about an instance, by what EC2 said at a time.
type verdict struct {
	at      time.Time
	refusal string // why not; "" if it may
}

const (
	// verdictTime is how long a verdict counts. Somebody may grant the right meanwhile.
	verdictTime = time.Hour
	// requestTime is how long a session waits for the request about its instance.
	requestTime = time.Minute
	// listTime is how old EC2's list of events may be when a request is made.
	listTime = 3 * pollInterval
	// startTime is how long after a stop nth-queue starts the instance. Later, somebody else may have stopped it.
	startTime = time.Hour
)

// rulesFor returns the rules for events of an instance. They let the policy finish those that EC2 lists and for which nth-queue may make the request.
func (t *term) rulesFor(inst *instance, events []event.Event) policy.Settings {
	t.mu.Lock()
	planned := t.truth.listed[inst.id].Planned
	t.mu.Unlock()
	rules := t.opts.Policy
	var codes []string
	for _, ev := range events { // An instance that is not managed has none.
		request := t.requestFor(ev)
		isListed := slices.ContainsFunc(planned, func(listed event.Event) bool { return listed.ID == ev.ID })
		if isListed && request != "" && rules.Asks(state.Entry{Event: ev}) == policy.Drain && t.mayRequest(inst, request) {
			codes = append(codes, ev.Code)
		}
	}
	if len(codes) == 0 {
		return rules
	}
	rules = maps.Clone(rules)
	rule := rules[event.ScheduledMaintenance]
	rule.Reboot = codes
	rules[event.ScheduledMaintenance] = rule
	return rules
}

// requestFor returns the request that carries out an event; "" if it is left to EC2.
func (t *term) requestFor(ev event.Event) ec2.Request {
	if ev.Kind != event.ScheduledMaintenance || ev.State != event.Pending {
		return ""
	}
	return finishes[t.opts.Finish][ev.Code]
}

// mayRequest reports whether nth-queue may make a request about an instance. It asks EC2, and says once if not. Without an answer, the last one counts;
// if there was none, it may not.
func (t *term) mayRequest(inst *instance, request ec2.Request) bool {
	t.mu.Lock()
	known := inst.verdicts[request]
	t.mu.Unlock()
	if time.Since(known.at) < verdictTime {
		return known.refusal == ""
	}
	refusal, err := t.refusal(inst.id, request)
	if err != nil {
		return !known.at.IsZero() && known.refusal == ""
	}
	if refusal != "" && known.refusal == "" {
		t.opts.Log.Warnf("the maintenance of the instance %s is left to EC2: %s", inst.id, refusal)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if inst.verdicts == nil {
		inst.verdicts = map[ec2.Request]verdict{}
	}
	inst.verdicts[request] = verdict{time.Now(), refusal}
	return refusal == ""
}

// refusal asks EC2 why a request about an instance may not be made; "" if it may. An error means that EC2 has not answered.
func (t *term) refusal(id string, request ec2.Request) (string, error) {
	ctx, cancel := context.WithTimeout(t.ctx, lookUpTimeout)
	defer cancel()
	if request == ec2.Stop {
		found, _, err := t.opts.EC2.LookNow(ctx, id)
		if errors.Is(err, ec2.ErrRefused) {
			return err.Error(), nil
		}
		if err != nil || found.Stays != "" {
			return found.Stays, err
		}
	}
	for _, r := range needs(request) {
		const try = true
		err := t.opts.EC2.Change(ctx, r, id, try)
		if errors.Is(err, ec2.ErrRefused) {
			return err.Error(), nil
		}
		if err != nil {
			return "", err
		}
	}
	return "", nil
}

// takesTurn reports whether the goal of a session is maintenance that nth-queue finishes, so that the session waits for the turn of its group. past is
// the record. When only the rule's Lead is left before the maintenance, nothing waits any more. The term's mutex is held.
func (s *session) takesTurn(past []state.Entry) bool {
	rule := s.rules[event.ScheduledMaintenance]
	return s.goal.Action == policy.Drain && !slices.ContainsFunc(s.goal.Events, func(id string) bool {
		e, _ := policy.Find(past, id)
		known := s.events[id]
		isFinished := known != nil && known.Kind == event.ScheduledMaintenance && slices.Contains(rule.Reboot, known.Code) && e.RebootAt.IsZero()
		return !isFinished || time.Until(known.Deadline) <= rule.Lead
	})
}

// turn returns the UID of the Node in a group for which nth-queue finishes maintenance; "" if there is none. Its turn lasts from the beginning of the
// drain until it is uncordoned or gone. The term's mutex is held.
func (t *term) turn(group string) types.UID {
	ids := map[types.UID]string{} // the instances of silent Nodes
	for _, inst := range t.instances {
		ids[inst.node.uid] = inst.id
		if s := inst.drain; s != nil && s.stage != waiting && s.inTurn && s.node.group == group {
			return s.node.uid
		}
	}
	var first node
	for _, n := range t.nodes.all() {
		isRequested := slices.ContainsFunc(n.mark.Events, func(id string) bool { return n.mark.claims(id, n) })
		isHolder := n.group == group && n.hasOwnCordon && n.unschedulable && (isRequested || t.finishesNext(cmp.Or(n.instance, ids[n.uid]), n))
		if isHolder && isRequested {
			return n.uid
		}
		if isHolder && (first.uid == "" || n.name < first.name) { // Several may be cordoned since before the setting.
			first = n
		}
	}
	return first.uid
}

// finishesNext reports whether the node of an instance is cordoned for maintenance that nth-queue is to finish. The term's mutex is held.
func (t *term) finishesNext(id string, on node) bool {
	inst := t.instances[id]
	return slices.ContainsFunc(t.truth.listed[id].Planned, func(ev event.Event) bool {
		request := t.requestFor(ev)
		isRefused := inst != nil && inst.verdicts[request].refusal != ""
		return request != "" && !isRefused && on.cordon.Names(ev.ID) && !slices.Contains(on.mark.Events, ev.ID)
	})
}

// mark implements record.mark: it writes the mark for entries whose node is drained, in a goroutine.
func (s *session) mark(written func(error), entries []state.Entry) {
	begun := s.term.background(func(ctx context.Context) {
		err := s.writeMark(ctx, entries)
		s.asked.Store(err != nil)
		written(err)
	})
	if !begun {
		written(context.Canceled)
	}
}

// writeMark writes the mark for entries whose node is drained. An error means that no request may be made: EC2 does not list the events now, the node
// does not have nth-queue's cordon, or another one of its group has the turn.
func (s *session) writeMark(ctx context.Context, entries []state.Entry) error {
	t := s.term
	t.mu.Lock()
	planned, looked, turn := t.truth.listed[s.instance.id].Planned, t.truth.looked, t.turn(s.node.group)
	t.mu.Unlock()
	next := mark{BootID: s.node.bootID}
	for _, e := range entries {
		isListed := slices.ContainsFunc(planned, func(ev event.Event) bool { return ev.ID == e.Event.ID && ev.State == event.Pending })
		if !isListed || time.Since(looked) > listTime {
			return errors.New("EC2 does not list the event now")
		}
		next.Events = append(next.Events, e.Event.ID)
		if request := t.requestFor(e.Event); request != ec2.Reboot || next.Request == "" { // A stop carries out a reboot, too.
			next.Request = request
		}
	}
	s.request = next.Request
	switch {
	case t.opts.DryRun:
		return nil
	case turn != "" && turn != s.node.uid:
		return errors.New("nth-queue carries out the maintenance of another node of the group")
	}
	if refusal, err := t.refusal(s.instance.id, next.Request); err != nil || refusal != "" { // The instance may have joined a group since.
		return cmp.Or(err, errors.New(refusal))
	}
	written := false
	err := t.change(ctx, s.node, nil, func(now *corev1.Node) map[string]any {
		on := t.nodes.parse(now)
		if written = on.hasOwnCordon && on.unschedulable && on.bootID == s.node.bootID; !written {
			return nil
		}
		if next.Since = time.Now().UTC(); !next.Since.After(on.cordon.Since) { // By the clock of another leader.
			next.Since = on.cordon.Since.Add(1)
		}
		for _, id := range on.mark.Events {
			if !slices.Contains(next.Events, id) {
				next.Events = append(next.Events, id)
			}
		}
		text, _ := json.Marshal(next) // Texts and a time always encode.
		return annotation(markAnnotation, string(text))
	})
	if err == nil && !written {
		return errors.New("the node does not have nth-queue's cordon, or was rebooted since")
	}
	return err
}

// carryOut makes the request for which the Node has the mark. It implements agent.Config.Reboot.
func (s *session) carryOut(ctx context.Context) error {
	t := s.term
	defer s.asked.Store(true)
	if err := t.MayWrite(); err != nil {
		return err
	}
	t.opts.Log.WithField(fieldNode, s.node.name).Infof("calling %s for %s", s.request, s.instance.id)
	const try = false
	return t.opts.EC2.Change(ctx, s.request, s.instance.id, try)
}

// requesting reports whether the request for an event may still be made or under way, so that the session has to last.
func (s *session) requesting(e state.Entry) bool {
	return e.Phase == state.Drained && !e.Released() && !s.asked.Load() && time.Since(e.RebootAt) < requestTime
}

// requested returns entries for the events in the mark of a Node, except for those in recorded. If the node was cordoned again after the request, it
// is drained again, for EC2's own time.
func (on node) requested(recorded []state.Entry, announced []event.Event) (entries []state.Entry) {
	for _, id := range on.mark.Events {
		at := slices.IndexFunc(announced, func(ev event.Event) bool { return ev.ID == id })
		isCordoned := on.hasOwnCordon && on.cordon.Names(id)
		if _, known := policy.Find(recorded, id); known || at < 0 && !isCordoned {
			continue
		}
		ev := event.Event{ID: id, Kind: event.ScheduledMaintenance, State: event.Pending}
		if at >= 0 {
			ev = announced[at]
		}
		since, cordoned := event.CredibleTime(on.mark.Since), event.CredibleTime(on.cordon.Since)
		e := state.Entry{Event: ev, Phase: state.Seen, BootID: on.mark.BootID, FirstSeen: since, Changed: since, RebootAt: since}
		if isCordoned {
			e.Phase, e.BootID, e.CordonedAt, e.ActedFor, e.OnNode = state.Draining, on.cordon.BootID, cordoned, cordoned, true
		}
		if on.mark.claims(id, on) {
			e.Phase = state.Drained
		}
		entries = append(entries, e)
	}
	return entries
}

// startStopped starts an instance that nth-queue has stopped for maintenance. It returns when to look again; 0 if only after news.
func (t *term) startStopped(inst *instance, on node) time.Duration {
	m := on.mark
	if m.Request != ec2.Stop || m.BootID != on.bootID || !on.hasOwnCordon || on.ready || time.Since(m.Since) > startTime || t.opts.DryRun {
		return 0
	}
	ctx, cancel := context.WithTimeout(t.ctx, lookUpTimeout)
	defer cancel()
	found, _, err := t.opts.EC2.LookNow(ctx, inst.id)
	if err == nil && found.State == "stopped" {
		t.opts.Log.WithField(fieldNode, on.name).Infof("calling %s for %s", ec2.Start, inst.id)
		const try = false
		err = t.opts.EC2.Change(ctx, ec2.Start, inst.id, try)
	}
	if err != nil && t.ctx.Err() == nil {
		t.opts.Log.WithField(fieldNode, on.name).Warnf("cannot ask EC2 about %s (%s): %s; retrying", inst.id, "its start after maintenance", err)
	}
	return askPause
}

// removeMark takes the mark off an open Node once EC2 does not list its events any more. It returns when to try again; 0 if that is not needed.
func (t *term) removeMark(inst *instance, on node) time.Duration {
	t.mu.Lock()
	polled := !t.truth.lookedBefore.IsZero()
	planned := slices.Concat(t.truth.listed[inst.id].Planned, t.truth.before[inst.id].Planned)
	t.mu.Unlock()
	stands := slices.ContainsFunc(planned, func(ev event.Event) bool {
		return ev.State == event.Pending && slices.Contains(on.mark.Events, ev.ID)
	})
	if len(on.mark.Events) == 0 || on.hasOwnCordon || !polled || stands {
		return 0
	}
	patchFor := func(now *corev1.Node) map[string]any {
		if _, found := now.Annotations[markAnnotation]; !found {
			return nil
		}
		return annotation(markAnnotation, "")
	}
	if err := t.change(t.ctx, on, nil, patchFor); err != nil {
		t.opts.Log.WithField(fieldNode, on.name).Debugf("cannot take the mark off: %s; retrying", err)
		return firstPause
	}
	return 0
}
