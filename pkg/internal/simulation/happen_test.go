package simulation_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/drain/apitest"
	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/evict"
	"github.com/nth-project/nth/pkg/loop"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/wait"
)

// live lets a plan happen. The node is judged whenever it is at rest: between happenings that are far enough apart, at the end, when nothing is
// wrong any more, and again when nothing is announced any more.
func (w *world) live(p plan) {
	p = p.started()
	for _, h := range p {
		if wait := h.at - w.now(); wait > 0 {
			w.pass(wait)
		}
		w.happen(h)
	}
	w.recover()
	w.pass(quiet + time.Second)
	w.judgeRest()
	w.withdrawAll()
	w.pass(max(w.longestWithdrawal(), quiet) + time.Second)
	w.judgeRest()
	w.judgeEnd()
	w.close()
}

// pass lets time pass, and judges the node when it has been quiet for long enough.
func (w *world) pass(d time.Duration) {
	end := time.Now().Add(d)
	for {
		w.mu.Lock()
		calm := w.disturbed.Add(quiet)
		w.mu.Unlock()
		if !calm.Before(end) || !calm.After(time.Now()) {
			break
		}
		time.Sleep(time.Until(calm))
	}
	// Just before something happens is when it was quiet for longest.
	if left := time.Until(end) - time.Millisecond; left > 0 {
		time.Sleep(left)
		w.judgeRest()
	}
	time.Sleep(time.Until(end))
}

// close stops nth and the fake API server.
func (w *world) close() {
	w.mu.Lock()
	w.ending = true
	w.mu.Unlock()
	w.stop()
	w.mu.Lock()
	for _, i := range w.all {
		i.cancel()
	}
	w.mu.Unlock()
	w.running.Wait()
	w.server.Close()
}

// happen carries out a happening.
func (w *world) happen(h happening) {
	w.note("-- %s", h)
	do, known := happenings[h.what]
	if !known {
		w.violated(understood, "nothing known is %q", h.what)
		return
	}
	do(w, h)
}

// happenings are all that may happen, by the word of a plan. span, written "for", is how long something lasts, unless it says otherwise.
var happenings = map[string]func(*world, happening){
	"start": func(w *world, _ happening) { w.begin() },

	// Changes of the rules: name is the kind of event or the code, kind the action, and span the setting's value.
	"rule": func(w *world, h happening) { w.rule(h.name, func(r *policy.Rule) { r.Action = policy.Action(h.kind) }) },
	"code": setting(event.ScheduledMaintenance, func(r *policy.Rule, h happening) {
		r.Codes = maps.Clone(r.Codes)
		r.Codes[h.name] = policy.When(h.kind)
	}),
	"hard":       setting(event.ScheduledMaintenance, func(r *policy.Rule, h happening) { r.Hard = h.n > 0 }),
	"reboots":    setting(event.ScheduledMaintenance, func(r *policy.Rule, _ happening) { r.Reboot = []string{"system-reboot"} }),
	"hibernate":  setting(event.SpotInterruption, func(r *policy.Rule, h happening) { r.Hibernate = policy.Action(h.kind) }),
	"lead":       setting(event.ScheduledMaintenance, func(r *policy.Rule, h happening) { r.Lead = h.span }),
	"cordon-for": setting(event.RebalanceRecommendation, func(r *policy.Rule, h happening) { r.CordonFor = h.span }),
	"budget":     setting(event.ASGTermination, func(r *policy.Rule, h happening) { r.Budget = h.span }),
	"option":     (*world).option,

	// Notices, by name.
	"announce": (*world).announce,
	"withdraw": func(w *world, h happening) { w.edit(h.name, (*notice).withdraw) },
	"return":   func(w *world, h happening) { w.edit(h.name, (*notice).relist) },
	"cancel":   func(w *world, h happening) { w.edit(h.name, func(n *notice) { n.becomes(event.Canceled) }) },
	"complete": func(w *world, h happening) { w.edit(h.name, func(n *notice) { n.becomes(event.Completed) }) },
	"move": func(w *world, h happening) {
		w.edit(h.name, func(n *notice) {
			if n.kind == event.ScheduledMaintenance {
				n.deadline, n.deadlined = seconds(time.Now().Add(h.span)), time.Now()
				w.watchDeadline(n)
			}
		})
	},
	"deaf": (*world).deaf,

	// The way to the API server, and its cache and clock.
	"fault":  (*world).fault,
	"stuck":  (*world).stick,
	"drop":   func(w *world, _ happening) { w.server.DropWatches(); w.disturb(0) },
	"expire": func(w *world, _ happening) { w.server.Compact(); w.server.DropWatches(); w.disturb(0) },
	"lag":    (*world).lag,
	"skew": func(w *world, h happening) { // at the beginning only
		w.mu.Lock()
		w.cluster.skew = h.span
		w.mu.Unlock()
		w.server.SetSkew(h.span)
	},
	"kubeconfig": (*world).replaceKubeconfig,
	"rename":     (*world).renameNode,

	// nth as a process, its disk and its machine.
	"crash":    (*world).crash,
	"crash-at": (*world).crashAt,
	"stop":     func(w *world, h happening) { w.stop(); w.beginAfter(h.span) },
	"forget":   (*world).forget,
	"disk":     (*world).hang,
	"full":     (*world).fill,
	"mute":     (*world).mute,
	"reboot":   (*world).reboot,
	"credential": func(w *world, h happening) {
		w.hinder(h.span)
		w.mu.Lock()
		w.identity = time.Now().Add(h.span)
		w.mu.Unlock()
	},

	// Pods and their controllers, budgets and volumes.
	"pod":      (*world).addPod,
	"late-pod": (*world).addPod,
	"workload": (*world).addWorkload,
	"scale":    func(w *world, h happening) { w.server.RemoveWorkload(h.name); w.disturb(0) },
	"annotate": (*world).annotate,
	"guard":    (*world).guardPods,
	"yield":    (*world).yield,
	"yields":   (*world).yieldSlowly,
	"volume":   (*world).volume,
	"dying":    (*world).shutDownKubelet,
	"finish":   func(w *world, h happening) { w.finish(h.name) },

	// What others do to the Node.
	"admin":     (*world).admin,
	"queue":     (*world).queue,
	"karpenter": (*world).karpenter,
	"label":     (*world).label,
	"unnode":    (*world).removeNode,
	"node":      (*world).registerNode,
	"clock":     (*world).step,
	"sleep":     (*world).sleep,
	"quiet":     func(*world, happening) {}, // lets time pass at the end of a plan
}

// setting changes the rule of one kind of events.
func setting(kind event.Kind, change func(*policy.Rule, happening)) func(*world, happening) {
	return func(w *world, h happening) { w.rule(string(kind), func(r *policy.Rule) { change(r, h) }) }
}

// seconds cuts a time to whole seconds, as EC2 and the Kubernetes API write it.
func seconds(t time.Time) time.Time { return t.Truncate(time.Second) }

// rule changes the rule of a kind of events, and has nth begin again with it if that runs, as at a reload.
func (w *world) rule(name string, change func(*policy.Rule)) {
	if w.stop() {
		defer w.begin()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	kind := event.Kind(name)
	r := w.rules[kind]
	ignored := r.Action == policy.Ignore
	change(&r)
	w.rules[kind] = r
	w.ruleSet[kind] = time.Now()
	for _, n := range w.notices {
		if n.kind == kind {
			n.settled = time.Time{} // Another outcome may be due now.
			n.held = false
			if ignored && r.Action != policy.Ignore && !n.firstSeen.IsZero() {
				n.firstSeen = time.Now() // Until now nth did not look for it.
			}
			w.watchDeadline(n)
		}
	}
	w.unseenUncordonLocked() // By the new rule, an event may be due later, and be none that was active.
	w.disturbLocked(0)
}

// option changes how a drain works, from the next start on. name is the option, and span its value.
func (w *world) option(h happening) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch h.name {
	case "evict-after":
		w.options.LoadBalancerWait = h.span
	case "margin":
		w.options.Margin = h.span
	case "exclude":
		w.options.ExcludeFromLoadBalancers, w.options.LoadBalancerWait = true, h.span
	case "protect-unmanaged":
		w.options.ProtectUnmanaged = true
	case "volumes":
		w.options.VolumeWait = h.span
	case "targets":
		w.options.LoadBalancers = balancers{w, h.span, h.kind}
	}
}

// announce announces an event, unless its document has one already. kind is its kind and code, and span the time until its deadline, if any.
func (w *world) announce(h happening) {
	w.mu.Lock()
	defer w.mu.Unlock()
	kind, code, _ := strings.Cut(h.kind, "/")
	if slices.ContainsFunc(w.notices, func(n *notice) bool { return n.name == h.name }) {
		return
	}
	alone := kind != string(event.ScheduledMaintenance)
	if alone && slices.ContainsFunc(w.notices, func(n *notice) bool { return n.kind == event.Kind(kind) && n.listed }) {
		return // The document has room for one event.
	}
	if w.replaces(event.Kind(kind), code, h.span) {
		return
	}
	n := &notice{
		name: h.name, kind: event.Kind(kind), code: code, state: event.Pending, listed: true, boot: w.boot,
		changed: time.Now(), announced: time.Now(), deadlined: time.Now(),
	}
	if n.kind == event.ASGTermination || n.kind == event.Shutdown {
		n.name = fmt.Sprintf("%s@%d", n.name, w.boot) // The IDs of these events contain the boot ID.
	}
	if h.span != 0 {
		n.deadline = seconds(time.Now().Add(h.span))
	}
	// nth may take it for one from an earlier boot whose deadline has moved.
	n.unsure = alone && w.anyNotice(func(other *notice) bool {
		return other.kind == n.kind && other.code == code && other.boot != w.boot && !w.over(other)
	})
	// The API server refuses to show the Node: nth may see an earlier uncordon only now.
	n.unsure = n.unsure || time.Now().Before(w.refused) && !w.cluster.uncordoned.IsZero()
	w.notices = append(w.notices, n)
	w.documentChanged(n.kind)
	w.disturbLocked(0)
	w.watchDeadline(n)
}

// replaces reports whether a new spot or rebalance notice is for nth the same as an earlier one, and announces that one again then. It is the
// same until nth knows that the earlier one was withdrawn.
func (w *world) replaces(kind event.Kind, code string, span time.Duration) bool {
	if kind != event.SpotInterruption && kind != event.RebalanceRecommendation {
		return false
	}
	for _, n := range w.notices {
		if n.kind != kind || n.code != code || n.boot != w.boot || w.over(n) {
			continue
		}
		if to := seconds(time.Now().Add(span)); span != 0 && to.Before(n.deadline) {
			n.deadline, n.deadlined = to, time.Now()
		}
		w.watchDeadline(n)
		n.relist()
		n.changed = time.Now()
		w.documentChanged(kind)
		w.disturbLocked(0)
		return true
	}
	return false
}

// becomes ends a notice. EC2 says how maintenance has ended. Notices of other kinds just disappear.
func (n *notice) becomes(state event.State) {
	if n.kind != event.ScheduledMaintenance {
		n.withdraw()
		return
	}
	n.state = state
}

// withdraw removes a notice from its document.
func (n *notice) withdraw() { n.listed, n.unlisted = false, time.Now() }

// relist announces a withdrawn notice again, unless it was of an earlier boot only.
func (n *notice) relist() {
	if over := (n.kind == event.Shutdown || n.kind == event.ASGTermination) && !n.rebooted.IsZero(); !n.listed && !over {
		n.listed, n.announced, n.held = true, time.Now(), false
	}
}

// edit changes the notices of a name, apart from those that EC2 has ended.
func (w *world) edit(name string, change func(*notice)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.notices {
		if base, _, _ := strings.Cut(n.name, "@"); base != name && n.name != name {
			continue
		}
		if n.state != event.Pending {
			continue // EC2 never announces a canceled or completed event again.
		}
		before := n.listed
		n.held = w.holds(n)
		change(n)
		n.changed = time.Now()
		if before && !n.listed {
			n.deafSince = 0
		}
		w.documentChanged(n.kind)
	}
	w.disturbLocked(0)
}

// deaf makes the document of the kind name unreadable; without a name, all of the metadata service's.
func (w *world) deaf(h happening) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for kind, d := range w.documents {
		if h.name == string(kind) || h.name == "" && kind != event.Shutdown {
			if !time.Now().Before(d.deaf) {
				d.since = time.Now()
			}
			d.deaf, d.readable = time.Now().Add(h.span), time.Now().Add(h.span)
			w.documentChanged(kind)
			for _, n := range w.notices {
				if n.kind == kind && !n.listed {
					n.deafSince += h.span + 10*time.Second
				}
			}
			time.AfterFunc(h.span, func() {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.documentChanged(kind)
			})
		}
	}
	w.disturbLocked(h.span)
}

// fault lets requests of the verb name fail in the way kind. See fault in line_test.go.
func (w *world) fault(h happening) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = append(w.faults, &fault{verb: h.name, kind: h.kind, until: time.Now().Add(h.span)})
	if h.kind == "403" || h.kind == "html" {
		w.refused = time.Now().Add(h.span + longestPause)
	}
	switch h.kind {
	case "late": // nth gives up its first attempts only, and then waits longer.
		w.hinderLocked(min(h.span, firstReads))
		w.disturbLocked(h.span)
	case "void": // nth has to delete pods in time all the same.
		w.disturbLocked(h.span)
	default:
		w.hinderLocked(h.span)
	}
}

// stick lets all requests fail in the way kind that nth makes on its present connection, as if it led to an API server without etcd.
func (w *world) stick(h happening) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.nth == nil {
		return
	}
	w.faults = append(w.faults, &fault{kind: h.kind, until: time.Now().Add(h.span), on: &connection{w.nth, w.nth.connection}})
	w.muted = time.Now() // Watches that are open stay so.
	w.disturbLocked(h.span)
}

// replaceKubeconfig replaces nth's credential. The API server refuses the old one, until nth has noticed that after a time.
func (w *world) replaceKubeconfig(h happening) {
	w.server.DropWatches()
	w.fault(happening{kind: "401", span: h.span})
}

// renameNode registers the node under another name, and nth begins again under that. For the fake API server, both names are the same.
func (w *world) renameNode(h happening) {
	w.removeNode(h)
	w.registerNode(h)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.rename != nil {
		w.rename()
	}
}

// lag lets the API server's cache be behind: by n versions, and by a time.
func (w *world) lag(h happening) {
	w.server.SetLag(int64(h.n), h.span)
	w.hinder(20 * time.Second)
	time.AfterFunc(20*time.Second, func() { w.server.SetLag(0, 0) })
}

// crash kills nth, which is started again after a time.
func (w *world) crash(h happening) {
	w.mu.Lock()
	w.killLocked(w.nth, "for no reason")
	w.mu.Unlock()
	w.beginAfter(h.span)
}

func (w *world) beginAfter(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.beginAfterLocked(d)
}

// crashAt kills nth at the n-th write of its record from now. kind is before or after. nth is started again after a time.
func (w *world) crashAt(h happening) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.nth != nil {
		w.nth.crash, w.nth.before, w.nth.down = w.nth.puts+h.n, h.kind == "before", h.span
	}
}

// forget kills nth and deletes its record. nth is started again after a time.
func (w *world) forget(h happening) {
	w.mu.Lock()
	w.killLocked(w.nth, "and its record lost")
	w.disk = nil
	w.forgot = time.Now()
	for _, n := range w.notices {
		n.unsure = n.unsure || !n.rebooted.IsZero() // The claim may show nth that it ended with the reboot.
		n.rebooted, n.acted, n.firstSeen, n.settled, n.drained, n.vague = time.Time{}, false, time.Time{}, time.Time{}, "", true
		n.held = false
		if !n.lifted.IsZero() {
			n.unsure, n.lifted = true, time.Time{} // nth knows of the uncordon only if the annotation is still on the Node.
		}
	}
	w.mu.Unlock()
	w.beginAfter(h.span)
}

// hang lets the disk hang for a time.
func (w *world) hang(h happening) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.nth != nil {
		w.saveDiskLocked(w.nth)
	}
	w.hung = time.Now().Add(h.span)
	w.disturbLocked(h.span)
}

// fill lets each write to the disk fail for a time.
func (w *world) fill(h happening) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.full || time.Now().Before(w.hung) {
		return
	}
	w.full = true
	if w.nth != nil {
		w.saveDiskLocked(w.nth)
		w.breakDisk(w.nth)
	}
	time.AfterFunc(h.span, w.mendDisks)
}

// breakDisk replaces an incarnation's state directory by a file, so that each write fails.
func (w *world) breakDisk(i *incarnation) {
	i.broken = true
	dir := w.statePath(i.number)
	w.check(os.Rename(dir, dir+".away"))
	w.check(os.WriteFile(dir, nil, 0o600))
}

// mendDisks restores all state directories.
func (w *world) mendDisks() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.full {
		return
	}
	w.full = false
	for _, i := range w.all {
		dir := w.statePath(i.number)
		if _, err := os.Stat(dir + ".away"); err == nil {
			w.check(os.Remove(dir))
			w.check(os.Rename(dir+".away", dir))
		}
	}
}

// mute lets open watches deliver nothing, until nth gives them up. Watches that are opened within the time are mute, too.
func (w *world) mute(h happening) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.muted = time.Now().Add(h.span)
	w.hinderLocked(h.span + 15*time.Second)
}

// firstReads is how long a process of nth may need until it waits long enough for late answers.
const firstReads = 40 * time.Second

// longestPause is how long nth may pause after a refusal for good.
const longestPause = 65 * time.Second

// missedAfter is how long after a kubelet's last report the controller manager sets Ready to Unknown: its node-monitor-grace-period.
const missedAfter = 50 * time.Second

// reboot kills nth, and starts it in another boot after a time. n seconds later the kubelet reports the node Ready.
func (w *world) reboot(h happening) {
	w.mu.Lock()
	w.killLocked(w.nth, "in a reboot")
	w.boot++
	w.booted = time.Now()
	for _, n := range w.notices {
		w.survive(n)
	}
	id := w.bootID()
	w.cluster.volumes = 0
	w.mu.Unlock()
	w.server.StartKubelet()
	w.node(func(n *corev1.Node) { n.Status.VolumesInUse = nil })
	time.AfterFunc(missedAfter, func() { // After a quick reboot, the Node was Ready all the time.
		if node := w.server.CurrentNode(); w.isBoot(id) && node != nil && node.Status.NodeInfo.BootID != id {
			w.node(func(n *corev1.Node) { ready(n, corev1.ConditionUnknown) })
		}
	})
	w.beginAfter(h.span)
	w.hinder(h.span + time.Duration(h.n)*time.Second)
	time.AfterFunc(h.span+time.Duration(h.n)*time.Second, func() {
		if w.isBoot(id) {
			w.server.SetBootID(id)
			w.node(func(n *corev1.Node) { ready(n, corev1.ConditionTrue) })
		}
	})
}

// isBoot reports whether a boot is still the present one.
func (w *world) isBoot(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bootID() == id
}

// ready sets the Node's condition Ready.
func ready(n *corev1.Node, status corev1.ConditionStatus) {
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
}

// survive updates a notice for a reboot. The IDs of some kinds contain the boot ID: such a notice ends, and a lifecycle hook that still waits is
// announced under another ID.
func (w *world) survive(n *notice) {
	n.changed = time.Now()
	n.unsure = n.unsure || !n.rebooted.IsZero() // nth may have ended it at the reboot before.
	switch {
	case n.kind == event.ASGTermination || n.kind == event.Shutdown:
		if n.kind == event.ASGTermination && n.listed && n.boot == w.boot-1 { // The hook still waits.
			base, _, _ := strings.Cut(n.name, "@")
			w.notices = append(w.notices, &notice{
				name: fmt.Sprintf("%s@%d", base, w.boot), kind: n.kind, code: n.code, state: n.state, listed: true, boot: w.boot,
				changed: time.Now(), announced: time.Now(), deadlined: time.Now(),
			})
		}
		if n.listed {
			n.listed, n.unlisted = false, time.Now()
		}
	case n.rebooted.IsZero():
		n.acted = w.possible(n, cordoned)
		n.unsure = n.unsure || n.outdated // The record may not say that nth was acting on it.
	}
	n.rebooted, n.held, n.done = time.Now(), false, n.done || n.drained != ""
	w.documentChanged(n.kind)
}

// node changes the Node, if one exists. manager is the field manager.
func (w *world) node(change func(*corev1.Node), manager ...string) {
	if w.server.CurrentNode() != nil {
		w.server.ChangeNode(change, manager...)
	}
}

// step sets the machine's clock ahead by span, or back.
func (w *world) step(h happening) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.offset += h.span
}

// sleep lets the machine sleep for a time. The world's clock stands still then, so all that was before becomes older instead.
func (w *world) sleep(h happening) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.anyNotice(func(n *notice) bool { return n.listed && n.kind.Local() }) {
		return // A machine that shuts down does not go to sleep.
	}
	w.slept.Add(int64(h.span))
	w.cluster.skew += h.span // The API server's clock does not stop.
	w.cluster.sleeps = append(w.cluster.sleeps, sleep{time.Now(), h.span})
	w.server.SetSkew(w.cluster.skew)
	w.booted = w.booted.Add(-h.span)
	for _, n := range w.notices {
		for _, t := range []*time.Time{
			&n.deadline, &n.changed, &n.announced, &n.firstSeen, &n.lastSeen, &n.rebooted, &n.lifted, &n.settled, &n.unlisted, &n.ended, &n.missed,
		} {
			if !t.IsZero() {
				*t = t.Add(-h.span)
			}
		}
		n.deadlined = time.Now()
		w.watchDeadline(n)
	}
	w.hinderLocked(0)
}

// recover ends all faults, brings the Node and nth back, and removes the operators' annotation from the Node.
func (w *world) recover() {
	w.note("-- all is well again")
	w.mu.Lock()
	w.faults, w.hung = nil, time.Time{}
	if now := time.Now(); now.Before(w.muted) {
		w.muted = now // Watches that are mute already stay so.
	}
	w.identity = time.Time{}
	rest := min(max(time.Until(w.refused), 0), longestPause)
	w.refused = time.Time{}
	for kind, d := range w.documents {
		if time.Now().Before(d.deaf) {
			d.deaf = time.Now()
			w.documentChanged(kind)
		}
	}
	id := w.bootID()
	w.disturbLocked(0)
	w.disturbed = time.Now().Add(rest)
	w.mu.Unlock()
	w.server.SetLag(0, 0)
	if w.server.CurrentNode() == nil {
		w.registerNode(happening{})
	}
	w.mendDisks()
	w.server.StartKubelet()
	w.server.SetBootID(id)
	w.node(func(n *corev1.Node) {
		ready(n, corev1.ConditionTrue)
		delete(n.Annotations, drain.ActionAnnotation)
	})
	w.change(func(c *cluster) { c.action, c.actionSet = "", time.Now() })
	w.begin()
	time.Sleep(rest)
}

// volume lets the Node report a volume in use for a time.
func (w *world) volume(h happening) {
	if w.server.CurrentNode() == nil {
		return
	}
	name := corev1.UniqueVolumeName("kubernetes.io/csi/ebs.csi.aws.com^" + h.name)
	w.node(func(n *corev1.Node) { n.Status.VolumesInUse = append(n.Status.VolumesInUse, name) })
	w.mu.Lock()
	if w.cluster.volumes++; w.cluster.volumes == 1 {
		w.cluster.used = time.Now()
	}
	w.disturbLocked(h.span)
	w.mu.Unlock()
	time.AfterFunc(h.span, func() {
		w.node(func(n *corev1.Node) {
			n.Status.VolumesInUse = slices.DeleteFunc(n.Status.VolumesInUse, func(v corev1.UniqueVolumeName) bool { return v == name })
		})
		w.mu.Lock()
		defer w.mu.Unlock()
		if node := w.server.CurrentNode(); node != nil {
			w.cluster.volumes = len(node.Status.VolumesInUse)
		}
	})
}

// shutDownKubelet lets the kubelet end all pods, as in a shutdown with its own graceful shutdown. They stay on the node as failed.
func (w *world) shutDownKubelet(_ happening) {
	w.mu.Lock()
	w.cluster.failed = time.Now()
	for _, pod := range w.onNode() {
		if owner := metav1.GetControllerOf(pod); owner != nil {
			if _, before := w.cluster.firstEnded[owner.Name]; !before {
				w.cluster.firstEnded[owner.Name] = time.Now()
			}
		}
	}
	w.mu.Unlock()
	w.server.ShutDownKubelet()
	w.server.FailPods()
	w.disturb(2 * time.Second)
}

// yieldSlowly adds a disruption budget for a controller that lets one of its pods go at a time.
func (w *world) yieldSlowly(h happening) {
	w.mu.Lock()
	slow := w.cluster.yielding[h.name]
	w.cluster.yielding[h.name] = true
	w.mu.Unlock()
	if slow {
		return // The API server refuses to evict a pod with two budgets.
	}
	w.server.AddBudget(apitest.Budget{
		Namespace: "default", Name: "slow-" + h.name, Selector: map[string]string{"app": h.name}, MaxUnavailable: new(1), Delay: 200 * time.Millisecond,
	})
	w.disturb(0)
}

// withdrawAll withdraws all notices.
func (w *world) withdrawAll() {
	w.note("-- nothing is announced any more")
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.notices {
		if n.listed {
			n.held = w.holds(n)
			n.listed, n.unlisted, n.changed, n.deafSince = false, time.Now(), time.Now(), 0
		}
	}
	for kind := range w.documents {
		w.documentChanged(kind)
	}
	w.disturbLocked(0)
}

// longestWithdrawal is how long it takes until nth must have found that all is withdrawn.
func (w *world) longestWithdrawal() time.Duration {
	longest := time.Duration(0)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.notices {
		if w.ends(n).After(time.Now().Add(longest)) {
			longest = time.Until(w.ends(n)) + 3*time.Second // for the look that finds it missing
		}
	}
	return longest
}

// shapes are the sorts of pods that are not just a ReplicaSet's.
var shapes = map[string]func(*corev1.Pod){
	"daemon": apitest.OwnedBy("DaemonSet", "apps/v1"), "bare": apitest.Unmanaged, "critical": apitest.Critical,
	"mirror":    func(p *corev1.Pod) { apitest.Mirror(p); apitest.Unmanaged(p) },
	evict.Never: apitest.Annotated(evict.Annotation, evict.Never), evict.AtDeadline: apitest.Annotated(evict.Annotation, evict.AtDeadline),
	"stuck": func(p *corev1.Pod) { p.Finalizers = []string{"example.com/stuck"} },
	"fat": func(p *corev1.Pod) {
		p.Spec.Containers = []corev1.Container{{Name: "main", Args: []string{strings.Repeat("x", 10_000)}}}
	},
	"finished": apitest.Phase(corev1.PodSucceeded),
}

// addPod adds a pod to the node. kind says what sort of pod, span is its grace period, and n how many seconds it takes to end. A late-pod is
// bound to the node a second after it was created.
func (w *world) addPod(h happening) {
	if w.server.HasPod("default/" + h.name) {
		return
	}
	pod := apitest.RunningPod(h.name, apitest.Grace(int64(h.span/time.Second)), apitest.Ready)
	pod.Labels = map[string]string{"app": h.name}
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: w.server.Now()})
	if shape := shapes[h.kind]; shape != nil {
		shape(pod)
	}
	for i := range pod.OwnerReferences {
		pod.OwnerReferences[i].Name = h.name
	}
	ending := apitest.Ending(time.Duration(h.n) * time.Second)
	if h.kind == "hangs" {
		ending = apitest.Never
		w.change(func(c *cluster) { c.hanging["default/"+h.name] = true })
	}
	if h.what == "late-pod" {
		w.server.AddPodLate(pod, time.Second, ending)
		w.disturb(time.Second)
		return
	}
	w.server.AddPod(pod, ending)
	w.disturb(0)
}

// addWorkload adds a controller with n pods. kind is replicas, stateful or daemon. With +tolerates, its pods come back to a closed node.
func (w *world) addWorkload(h happening) {
	work := apitest.Workload{
		Name: h.name, Pods: h.n, Ending: apitest.Ending(time.Second), Delay: 300 * time.Millisecond, Starts: time.Second,
		Tolerates: strings.Contains(h.kind, "tolerates"),
		Pod: func(p *corev1.Pod) {
			p.Labels = map[string]string{"app": h.name}
			p.Spec.TerminationGracePeriodSeconds = new(int64(h.span / time.Second))
		},
	}
	w.change(func(c *cluster) { c.returning[h.name] = work.Tolerates })
	switch {
	case strings.HasPrefix(h.kind, "stateful"):
		w.server.AddStatefulSet(work)
	case strings.HasPrefix(h.kind, "daemon"):
		w.server.AddDaemonSet(work)
	default:
		w.server.AddReplicaSet(work)
	}
	w.disturb(2 * time.Second)
}

// annotate sets evict.Annotation on a pod to kind.
func (w *world) annotate(h happening) {
	name := "default/" + h.name
	if !w.server.HasPod(name) {
		return
	}
	w.server.ChangePod(name, func(p *corev1.Pod) {
		metav1.SetMetaDataAnnotation(&p.ObjectMeta, evict.Annotation, h.kind)
	})
	w.change(func(c *cluster) { c.annotated[name] = time.Now() })
}

// balancers is a wait.Blocker: load balancers that take the machine out after a time, or, with the kind unknown, cannot be asked.
type balancers struct {
	world *world
	wait  time.Duration
	kind  string
}

// Wait implements wait.Blocker.
func (b balancers) Wait(ctx context.Context, _ wait.Node, report func(string)) error {
	report("a target")
	if !loop.Await(ctx, nil, b.wait) {
		return ctx.Err()
	}
	if b.kind == "unknown" {
		return errors.New("not known")
	}
	return nil
}

// guardPods adds a disruption budget that never lets the pod name go.
func (w *world) guardPods(h happening) {
	w.server.AddBudget(apitest.Budget{Namespace: "default", Name: h.name, Selector: map[string]string{"app": h.name}, MinAvailable: new(100)})
	w.change(func(c *cluster) { c.guarded[h.name] = true })
}

// finish takes the finalizers off a pod.
func (w *world) finish(name string) {
	if w.server.HasPod("default/" + name) {
		w.server.ChangePod("default/"+name, func(p *corev1.Pod) { p.Finalizers = nil })
	}
	w.disturb(0)
}

// yield removes the budget of guardPods.
func (w *world) yield(h happening) {
	w.server.RemoveBudget("default", h.name)
	w.change(func(c *cluster) { c.guarded[h.name] = false })
}
