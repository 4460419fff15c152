package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nth-project/nth/pkg/ec2"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/loop"
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
	for request := range maps.Values(finishes[f]) {
		all = append(all, needs(request)...)
	}
	slices.Sort(all)
	return slices.Compact(all)
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
// EC2 lists one of the events, and until their own time. So no leader makes a second request for an event.
type mark struct {
	Events  []string    `json:"events"`
	Request ec2.Request `json:"request"`
	BootID  string      `json:"boot_id"`
	Since   time.Time   `json:"since"`
	Until   time.Time   `json:"until,omitzero"` // the latest deadline of the events
}

// annotation returns a patch that writes the mark.
func (m mark) annotation() map[string]any {
	text, _ := json.Marshal(m) // Texts and times always encode.
	return annotation(markAnnotation, string(text))
}

// claims reports whether the mark's request was made for an event while the node had its present cordon. After a later cordon, the event is left to EC2.
func (m mark) claims(event string, on node) bool {
	return slices.Contains(m.Events, event) && on.hasOwnCordon && m.Since.After(on.cordon.Since)
}

// isRequested reports whether the node is cordoned for maintenance that EC2 was asked to carry out, and may still do so.
func (on node) isRequested() bool {
	return on.mark.Request != "" && slices.ContainsFunc(on.mark.Events, func(id string) bool { return on.mark.claims(id, on) })
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
	// downTime is how long a machine may take to go down after a request. EC2 has not carried out the request if the machine takes longer: who stops it
	// then has reasons of their own, so nth-queue must not start it.
	downTime = 10 * time.Minute
	// askAgain is how often EC2 is asked again whether it would refuse a request whose node is drained, and how often the watch is looked at again if
	// it does not show the cordon.
	askAgain = 5
)

// rulesFor returns the rules for events of an instance. They let the policy finish those that EC2 lists and for which nth-queue may make the request.
// They do not if operators have opted the node out, or others have cordoned it.
func (t *term) rulesFor(inst *instance, on node, events []event.Event) policy.Settings {
	t.mu.Lock()
	planned := t.truth.listed[inst.id].Planned
	t.mu.Unlock()
	rules := t.opts.Policy
	if on.optedOut || on.unschedulable && !on.hasOwnCordon {
		return rules
	}
	var codes []string
	for _, ev := range events { // If the instance is not managed, they are over, and requestFor has no request.
		request := t.requestFor(ev)
		_, isPlanned := find(planned, ev.ID)
		if isPlanned && request != "" && rules.Asks(state.Entry{Event: ev}) == policy.Drain && t.mayRequest(inst, request) {
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
	known := inst.verdicts[request]
	if time.Since(known.at) >= verdictTime {
		if refusal, err := t.refusal(inst.id, request); err == nil {
			if refusal != "" && known.refusal == "" {
				t.opts.Log.Warnf("cannot carry out the maintenance of the instance %s early: %s; it is left to EC2", inst.id, refusal)
			}
			known = verdict{time.Now(), refusal}
			inst.verdicts[request] = known
		}
	}
	return !known.at.IsZero() && known.refusal == ""
}

// refusal asks EC2 why a request about an instance may not be made; "" if it may. An error means that EC2 has not answered.
func (t *term) refusal(id string, request ec2.Request) (string, error) {
	ctx, cancel := context.WithTimeout(t.ctx, lookUpTimeout)
	defer cancel()
	found, _, err := t.opts.EC2.Look(ctx, id)
	switch {
	case errors.Is(err, ec2.ErrRefused):
		return err.Error(), nil
	case err != nil:
		return "", err
	case t.opts.ManagedOnly && !found.Managed: // Its tag may have been removed since the drain began.
		return "the instance is no longer managed by nth-queue", nil
	case request == ec2.Stop && found.Stays != "":
		return found.Stays, nil
	case !found.Runs():
		return "the instance does not run", nil
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

// finishing reports whether a goal for a node is maintenance that nth-queue finishes, so that its session waits for the turn of the node's group. past is
// the record. When only the rule's Lead is left before the maintenance, nothing waits any more.
func finishing(rules policy.Settings, goal policy.Goal, on node, events []event.Event, past []state.Entry) bool {
	return goal.Action == policy.Drain && !slices.ContainsFunc(goal.Events, func(id string) bool {
		ev, _ := find(events, id)
		e, _ := policy.Find(past, id) // Without an entry, nothing was done for the event.
		wasRequested, wasRebooted := !e.RebootAt.IsZero(), e.Acted() && e.BootID != on.bootID
		isLeftToEC2 := wasRequested || wasRebooted || e.Released()
		return !rules.Reboots(ev) || isLeftToEC2 || time.Until(ev.Deadline) <= rules[ev.Kind].Lead
	})
}

// turn returns the UID of the Node in a group for which nth-queue finishes maintenance; "" if there is none. Its turn begins with a session that is
// takesTurn: dispatch or writeMark sets that. It lasts until the node is uncordoned or opted out, or EC2 says that the instance is terminated. If the
// Node was deleted meanwhile, turn returns the ID of the instance. The term's mutex is held.
func (t *term) turn(group string) string {
	known := map[types.UID]*instance{}
	for _, inst := range t.instances {
		known[inst.node.uid] = inst
		n, s := inst.node, inst.drain
		if n.uid == "" && n.group == group && n.isRequested() && !inst.gone { // The Node was deleted: see instance.node.
			return inst.id
		}
		// After the end of a session, the next look tells whether the Node still has the turn.
		if s.runs() && s.takesTurn && s.node.group == group && (s.stage != working || !s.yields()) {
			return string(s.node.uid)
		}
	}
	var first node
	for _, n := range t.nodes.all() {
		if n.group != group || !n.hasOwnCordon || !n.unschedulable {
			continue
		}
		has, isNext := t.turnOf(n, known[n.uid])
		if has {
			return string(n.uid)
		}
		if isNext && (first.uid == "" || n.name < first.name) { // Several may be cordoned since before the setting.
			first = n
		}
	}
	return string(first.uid)
}

// yields reports whether operators have opted the node out, or uncordoned it, so that the session carries out no maintenance.
func (s *session) yields() bool {
	return s.leftAlone() || slices.ContainsFunc(s.record.Entries(), state.Entry.Released)
}

// turnOf says of a cordoned Node for which no session runs in turn whether it still has the turn of its group, or may have the turn next. inst is
// its instance; nil if that is not known. The term's mutex is held.
func (t *term) turnOf(n node, inst *instance) (has, isNext bool) {
	nodes := t.nodes.of(n.instance)
	switch {
	case len(nodes) > 0 && nodes[0].ready && nodes[0].uid != n.uid: // The machine has registered another Node since.
		return false, false
	case inst == nil || !inst.judged: // An earlier leader may have begun.
		return n.isRequested(), t.finishesNext(n)
	case inst.gone: // Nobody may ever delete the Node.
		return false, false
	}
	n.mark = inst.node.mark // The watch may not show the mark yet: see writeMark.
	isWaiting := inst.drain != nil && inst.drain.stage == waiting
	return n.isRequested() || !inst.drain.runs() && inst.awaitsEnd(), isWaiting && inst.drain.takesTurn
}

// finishesNext reports whether all events that a node is cordoned for are in EC2's list, and are maintenance that nth-queue finishes. The instance need
// not be known. The term's mutex is held.
func (t *term) finishesNext(on node) bool {
	finished := 0
	for _, status := range t.truth.listed {
		for _, ev := range status.Planned {
			if on.cordon.Names(ev.ID) && t.requestFor(ev) != "" && !slices.Contains(on.mark.Events, ev.ID) {
				finished++
			}
		}
	}
	return finished > 0 && finished >= len(on.cordon.Events) // The claim may name one event, and list none.
}

// writeMark writes the mark for the events whose node is drained, and returns it. An error means that the request may not be made: EC2 does not
// list the events now, the node does not have nth-queue's cordon, the machine has another Node, or another node of the group has the turn.
func (s *session) writeMark(ctx context.Context) (mark, error) {
	t := s.term
	t.mu.Lock()
	planned, looked, uid := t.truth.listed[s.instance.id].Planned, t.truth.looked, string(s.node.uid)
	s.takesTurn = cmp.Or(t.turn(s.node.group), uid) == uid // When no time was left to wait for the turn, dispatch has not set it.
	isInTurn := s.takesTurn
	t.mu.Unlock()
	if time.Since(looked) > listTime {
		return mark{}, fmt.Errorf("EC2 has not confirmed in the last %s that the maintenance is still scheduled", listTime)
	}
	next, err := s.nextMark(planned)
	if err != nil {
		return mark{}, err
	}
	if !isInTurn {
		return mark{}, fmt.Errorf("only one node with the label %s=%s may have its maintenance at a time, and it is another node's turn", t.opts.GroupLabel, s.node.group)
	}
	if err := s.objection(ctx, next.Request); err != nil {
		return mark{}, err
	}
	for tries := 0; tries < askAgain && s.watchLags() && loop.Await(ctx, nil, time.Second); tries++ { // It may not show the cordon yet.
	}
	written, err := t.change(ctx, s.node, kube.InTurn, func(now *corev1.Node) map[string]any {
		on := t.nodes.parse(now)
		staysDrained := on.hasOwnCordon && on.unschedulable && !on.optedOut && on.bootID == s.node.bootID
		if !staysDrained {
			return nil
		}
		if next.Since = time.Now().UTC(); !next.Since.After(on.cordon.Since) { // mark.claims needs a later time; another leader's clock may be ahead.
			next.Since = on.cordon.Since.Add(1)
		}
		next.Events = slices.Compact(slices.Sorted(slices.Values(append(next.Events, on.mark.Events...))))
		next.Until = slices.MaxFunc([]time.Time{next.Until, on.mark.Until}, time.Time.Compare)
		return next.annotation()
	})
	switch {
	case err != nil:
		return mark{}, err
	case !written:
		return mark{}, errors.New("the node was uncordoned, rebooted, opted out or deleted after its drain, so pods may run on it again")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	s.instance.node.mark = next // The watch may not show the mark yet.
	return next, nil
}

// nextMark returns the mark for the events whose node is drained. planned are those that EC2 lists. An error means that EC2 does not list them all.
func (s *session) nextMark(planned []event.Event) (mark, error) {
	next := mark{BootID: s.node.bootID}
	for _, e := range s.record.Entries() {
		if e.RebootAt.IsZero() || e.Phase != state.Drained {
			continue
		}
		if ev, _ := find(planned, e.Event.ID); ev.State != event.Pending {
			return mark{}, errors.New("EC2 no longer lists the scheduled maintenance")
		}
		next.Events = append(next.Events, e.Event.ID)
		next.Until = slices.MaxFunc([]time.Time{next.Until, e.Event.Deadline}, time.Time.Compare)
		// requestFor has one for each event: the policy reboots only for the codes of rulesFor.
		if request := s.term.requestFor(e.Event); request != ec2.Reboot || next.Request == "" { // A stop carries out a reboot, too.
			next.Request = request
		}
	}
	if next.Request == "" {
		return mark{}, errors.New("the scheduled maintenance is over")
	}
	return next, nil
}

// objection returns what has come up since the drain began, so that a request may not be made: the instance may have joined a group, or its machine may
// have registered another Node. It returns nil if nothing has.
func (s *session) objection(ctx context.Context, request ec2.Request) error {
	if nodes := s.term.nodes.of(s.instance.id); len(nodes) > 0 && nodes[0].uid != s.node.uid {
		return errors.New("the machine has registered another Node, which is not drained")
	}
	refusal, err := s.term.refusal(s.instance.id, request)
	for tries := 0; err != nil && tries < askAgain && loop.Await(ctx, nil, askPause); tries++ {
		refusal, err = s.term.refusal(s.instance.id, request)
	}
	if refusal != "" {
		return errors.New(refusal)
	}
	return err
}

// carryOut writes the mark, and then makes its request. It implements agent.Config.Reboot. A missing answer is no error: what EC2 has done shows in the
// Node's boot ID, or in the state of the instance.
func (s *session) carryOut(ctx context.Context) error {
	t := s.term
	defer s.requestOver.Store(true)
	written, err := s.writeMark(ctx)
	if err == nil {
		err = t.MayWrite() // The fence stops only requests to the API server.
	}
	if err != nil {
		return err
	}
	log := t.opts.Log.WithField(fieldNode, s.node.name)
	log.Infof("calling %s for the instance %s, before the time of its scheduled maintenance", written.Request, s.instance.id)
	const try = false
	err = t.opts.EC2.Change(ctx, written.Request, s.instance.id, try)
	switch {
	case errors.Is(err, ec2.ErrUnanswered):
		log.Warnf("cannot tell whether EC2 carries out %s for the instance %s: %s; nth-queue watches the instance's state", written.Request, s.instance.id, err)
		return nil
	case err != nil: // If others stop the instance now, nth-queue must not start it. syncMark repeats this write later.
		written.Request = ""
		_, _ = t.change(ctx, s.node, kube.InTurn, func(*corev1.Node) map[string]any { return written.annotation() })
	}
	return err
}

// requesting reports whether the request for an event may still be made or under way, so that the session has to last. If the node was drained before,
// the agent first proves that it still is. The term's mutex is held.
func (s *session) requesting(e state.Entry) bool {
	since := e.RebootAt // Zero is long ago: no request is to be made.
	if s.takesTurn && since.IsZero() {
		since = s.since
	}
	return e.Phase == state.Drained && !e.Released() && !e.LeftAlone && !s.requestOver.Load() && time.Since(since) < requestTime
}

// entriesOfMark returns entries for the events in the mark of a Node, except for those in recorded. If the node was cordoned again after the request, it
// is drained again, for EC2's own time. An event that is neither announced nor named by the cordon gets no entry.
func (on node) entriesOfMark(recorded []state.Entry, announced []event.Event) (entries []state.Entry) {
	for _, id := range on.mark.Events {
		ev, isAnnounced := find(announced, id)
		isCordoned := on.hasOwnCordon && on.cordon.Names(id)
		if _, known := policy.Find(recorded, id); known || !isAnnounced && !isCordoned {
			continue
		}
		if !isAnnounced {
			ev = event.Event{ID: id, Kind: event.ScheduledMaintenance, State: event.Pending}
		}
		since, cordoned := event.CredibleTime(on.mark.Since), event.CredibleTime(on.cordon.Since)
		e := state.Entry{Event: ev, Phase: state.Seen, BootID: on.mark.BootID, FirstSeen: since, Changed: since, RebootAt: since}
		if isCordoned {
			e.Phase, e.BootID, e.CordonedAt, e.ActedAt, e.OnNode = state.Draining, on.cordon.BootID, cordoned, cordoned, true
		}
		if on.mark.claims(id, on) { // The cordon is the one of the request, and no later one.
			e.Phase, e.BootID = state.Drained, on.mark.BootID
		}
		entries = append(entries, e)
	}
	return entries
}

// awaitsEnd reports whether a request about an instance was to be made, and the node is not uncordoned since.
func (inst *instance) awaitsEnd() bool {
	return inst.record != nil && slices.ContainsFunc(inst.record.Entries(), func(e state.Entry) bool {
		return e.OnNode && e.Phase == state.Drained && e.RebootAt.After(e.CordonedAt)
	})
}

// followRequest asks EC2 what became of an instance with a mark that is down or has no Node. An instance without a Node is forgotten when it is
// terminated, or runs after the mark's time. followRequest returns when to ask again; 0 if only after news.
func (t *term) followRequest(inst *instance, on node) time.Duration {
	isDown := on.uid == "" || !on.ready
	if !isDown || len(on.mark.Events) == 0 || t.opts.DryRun {
		return 0
	}
	ctx, cancel := context.WithTimeout(t.ctx, lookUpTimeout)
	defer cancel()
	found, known, err := t.opts.EC2.Look(ctx, inst.id)
	if err == nil {
		t.mu.Lock()
		inst.gone = !known || found.Gone()
		if on.uid == "" && (inst.gone || found.Runs() && time.Now().After(on.mark.Until)) {
			inst.node = node{}
		}
		t.mu.Unlock()
	}
	if !inst.gone && on.mark.Request == ec2.Stop {
		t.startStopped(ctx, inst, on, found, err)
	}
	return min(max(time.Since(on.mark.Since)/2, askPause), pollInterval) // The longer ago the request, the longer the pause.
}

// startStopped starts an instance that nth-queue has stopped for maintenance: the Node shows the boot of the mark, and the instance was not started
// since. found is what EC2 says of the instance, and err why EC2 does not.
func (t *term) startStopped(ctx context.Context, inst *instance, on node, found ec2.Instance, err error) {
	stoppedByUs := on.isRequested() && on.bootID == on.mark.BootID
	if !stoppedByUs || t.toLocalClock(found.Launched).After(on.mark.Since) {
		return
	}
	log := t.opts.Log.WithField(fieldNode, on.name)
	if err == nil && found.State == "stopped" && t.MayWrite() == nil { // The fence stops only requests to the API server.
		const try = false
		if err = t.opts.EC2.Change(ctx, ec2.Start, inst.id, try); err == nil {
			log.Infof("started the instance %s, which nth-queue had stopped for its scheduled maintenance", inst.id)
		}
	}
	trouble := ""
	if err != nil && t.ctx.Err() == nil {
		if trouble = err.Error(); !kube.EqualIgnoringDigits(trouble, inst.notStarted) {
			log.Errorf("cannot start the instance %s, which nth-queue stopped: %s; retrying every minute", inst.id, err)
		}
	}
	inst.notStarted = trouble
}

// syncMark keeps the mark on the Node while EC2 lists one of its events, and until their own time: EC2's list may have a gap, and the Node may be
// registered again. Then it takes the mark off an open Node. If the machine has not gone down for the request, it has the mark name no request, but keep
// its events, for which no second request is made. It returns when to try again; 0 if that is not needed.
func (t *term) syncMark(inst *instance, on node) time.Duration {
	t.mu.Lock()
	// Before the first poll, it may be listed.
	isPlanned := t.truth.looked.IsZero() || slices.ContainsFunc(t.truth.listed[inst.id].Planned, func(ev event.Event) bool {
		return ev.State == event.Pending && slices.Contains(on.mark.Events, ev.ID)
	})
	stands := on.hasOwnCordon || isPlanned || time.Now().Before(on.mark.Until)
	if !stands {
		inst.node.mark = mark{}
	}
	t.mu.Unlock()
	if len(on.mark.Events) == 0 {
		return 0
	}
	patchFor := func(now *corev1.Node) map[string]any {
		shown := t.nodes.parse(now)
		stayedUp := shown.ready && shown.bootID == shown.mark.BootID && time.Since(shown.mark.Since) > downTime
		switch isMarked := now.Annotations[markAnnotation] != ""; {
		case stands && !isMarked:
			return on.mark.annotation()
		case isMarked && !stands:
			return annotation(markAnnotation, nil)
		case stayedUp && shown.mark.Request != "":
			shown.mark.Request = ""
			return shown.mark.annotation()
		}
		return nil
	}
	if _, err := t.change(t.ctx, on, kube.InTurn, patchFor); err != nil {
		t.opts.Log.WithField(fieldNode, on.name).Debugf("cannot write the annotation %s: %s; retrying", markAnnotation, err)
		return firstPause
	}
	return 0
}
