package simulation_test

import (
	"context"
	"errors"
	"fmt"
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

// live lets a plan happen. Between things that are far enough apart, what has become of the node is judged; and so it is at
// the end, when nothing is wrong any more, and once more when nothing is announced.
func (w *world) live(p plan) {
	p = p.started()
	w.keeps = slices.ContainsFunc(p, func(h happening) bool { return h.what == "stale" })
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

// pass lets time pass, and judges what has become of the node if it was quiet for long enough.
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

// close ends the world.
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
	w.tell("-- %s", h)
	do, known := happenings[h.what]
	if !known {
		w.violated(understood, "nothing known is %q", h.what)
		return
	}
	do(w, h)
}

// happenings are what may happen. Each disturbs the world for as long as its span says, where it has one.
var happenings = map[string]func(*world, happening){
	// The rules: kind is the action for the kind name; n of 1 tells that all others are as they are.
	"start": func(w *world, _ happening) { w.begin() },
	"rule":  func(w *world, h happening) { w.rule(h.name, func(r *policy.Rule) { r.Action = policy.Action(h.kind) }) },
	"code": func(w *world, h happening) {
		w.rule(string(event.ScheduledMaintenance), func(r *policy.Rule) {
			codes := map[string]policy.When{}
			for code, when := range r.Codes {
				codes[code] = when
			}
			codes[h.name] = policy.When(h.kind)
			r.Codes = codes
		})
	},
	"hard": func(w *world, h happening) {
		w.rule(string(event.ScheduledMaintenance), func(r *policy.Rule) { r.Hard = h.n > 0 })
	},
	"hibernate": func(w *world, h happening) {
		w.rule(string(event.SpotInterruption), func(r *policy.Rule) { r.Hibernate = policy.Action(h.kind) })
	},
	"lead": func(w *world, h happening) {
		w.rule(string(event.ScheduledMaintenance), func(r *policy.Rule) { r.Lead = h.span })
	},
	"cordon-for": func(w *world, h happening) {
		w.rule(string(event.RebalanceRecommendation), func(r *policy.Rule) { r.CordonFor = h.span })
	},
	"budget": func(w *world, h happening) {
		w.rule(string(event.ASGTermination), func(r *policy.Rule) { r.Budget = h.span })
	},
	// How a drain goes about it, for what begins with the next start.
	"option": (*world).option,

	"announce": (*world).announce,
	"withdraw": func(w *world, h happening) {
		w.edit(h.name, (*notice).withdraw)
	},
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
	"mock": func(w *world, h happening) {
		w.edit(h.name, func(n *notice) {
			n.moving = n.kind == event.SpotInterruption && !n.seen.IsZero()
			n.unsure = n.unsure || n.moving && !n.rebooted.IsZero() // With another time, it is another one than before the reboot.
		})
	},
	"deaf": (*world).deaf,

	"fault":  (*world).fault,
	"stuck":  (*world).stick,
	"drop":   func(w *world, _ happening) { w.server.DropWatches(); w.bother(0) },
	"expire": func(w *world, _ happening) { w.server.Compact(); w.server.DropWatches(); w.bother(0) },
	"lag":    (*world).lag,
	"skew": func(w *world, h happening) { // at the beginning only
		w.mu.Lock()
		w.cluster.skew = h.span
		w.mu.Unlock()
		w.server.SetSkew(h.span)
	},
	"crash":    (*world).crash,
	"crash-at": (*world).crashAt,
	"stop":     func(w *world, h happening) { w.stop(); w.beginNow(h.span) },
	"forget":   (*world).forget,
	"disk":     (*world).hang,
	"full":     (*world).fill,
	"stale":    (*world).stale,
	"mute":     (*world).mute,
	"reboot":   (*world).reboot,
	"credential": func(w *world, h happening) {
		w.obstruct(h.span)
		w.mu.Lock()
		w.identity = time.Now().Add(h.span)
		w.mu.Unlock()
	},

	"kubeconfig": (*world).replaceKubeconfig,
	"rename":     (*world).renameNode,

	"pod":      (*world).addPod,
	"late-pod": (*world).addPod,
	"workload": (*world).addWorkload,
	"scale":    func(w *world, h happening) { w.server.RemoveWorkload(h.name); w.bother(0) },
	"annotate": (*world).annotate,
	"guard":    (*world).guardPods,
	"yield":    (*world).yield,
	"yields":   (*world).yieldSlowly,
	"volume":   (*world).volume,
	"dying":    (*world).shutDownKubelet,
	"finish":   func(w *world, h happening) { w.finish(h.name) },

	"admin":     (*world).admin,
	"queue":     (*world).queue,
	"karpenter": (*world).karpenter,
	"label":     (*world).label,
	"unnode":    (*world).removeNode,
	"node":      (*world).registerNode,
	"clock":     (*world).step,
	"sleep":     (*world).sleep,
	"quiet":     func(*world, happening) {},
}

func seconds(t time.Time) time.Time { return t.Truncate(time.Second) }

// obstruct is hinder for who has not the lock.
func (w *world) obstruct(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hinder(d)
}

// bother is disturb for who has not the lock.
func (w *world) bother(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.disturb(d)
}

// rule changes the rule of a kind, live.
func (w *world) rule(name string, change func(*policy.Rule)) {
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
			n.settled = time.Time{} // it may be due more than it was
			n.held = false
			if ignored && r.Action != policy.Ignore && !n.seen.IsZero() {
				n.seen = time.Now() // only now it is met
			}
			w.watchDeadline(n)
		}
	}
	w.disturb(0)
	if w.nth != nil {
		w.nth.agent.SetPolicy(clone(w.rules))
	}
}

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

// announce begins an announcement: kind is its kind and code, and span the time until its deadline, if it has one.
func (w *world) announce(h happening) {
	w.mu.Lock()
	defer w.mu.Unlock()
	kind, code, _ := strings.Cut(h.kind, "/")
	if slices.ContainsFunc(w.notices, func(n *notice) bool { return n.name == h.name }) {
		return
	}
	alone := kind != string(event.ScheduledMaintenance)
	if alone && slices.ContainsFunc(w.notices, func(n *notice) bool { return n.kind == event.Kind(kind) && n.listed }) {
		return // its document holds one
	}
	if w.replaces(event.Kind(kind), code, h.span) {
		return
	}
	n := &notice{
		name: h.name, kind: event.Kind(kind), code: code, state: event.Pending, listed: true, boot: w.boot,
		changed: time.Now(), announced: time.Now(), deadlined: time.Now(),
	}
	if n.kind == event.ASGTermination || n.kind == event.Shutdown {
		n.name = fmt.Sprintf("%s@%d", n.name, w.boot) // these IDs are made from the boot's
	}
	if h.span != 0 {
		n.deadline = seconds(time.Now().Add(h.span))
	}
	// One that was announced in a boot before, and in this one, may be the same for nth, whose time has moved.
	n.unsure = alone && w.any(func(other *notice) bool {
		return other.kind == n.kind && other.code == code && other.boot != w.boot && !other.over(w)
	})
	w.notices = append(w.notices, n)
	w.documentChanged(n.kind)
	w.disturb(0)
	w.watchDeadline(n)
}

// replaces announces a spot or rebalance notice in the place of one before it, which is the same interruption as long as nth
// does not know that one for withdrawn; it reports whether there was one.
func (w *world) replaces(kind event.Kind, code string, span time.Duration) bool {
	if kind != event.SpotInterruption && kind != event.RebalanceRecommendation {
		return false
	}
	for _, n := range w.notices {
		if n.kind != kind || n.code != code || n.boot != w.boot || n.over(w) {
			continue
		}
		if to := seconds(time.Now().Add(span)); span != 0 && to.Before(n.deadline) {
			n.deadline, n.deadlined = to, time.Now()
		}
		w.watchDeadline(n)
		n.relist()
		n.changed = time.Now()
		w.documentChanged(kind)
		w.disturb(0)
		return true
	}
	return false
}

// becomes ends a notice: EC2 tells how maintenance has ended, and of all else only that it is announced, or is not any more.
func (n *notice) becomes(state event.State) {
	if n.kind != event.ScheduledMaintenance {
		n.withdraw()
		return
	}
	n.state = state
}

func (n *notice) withdraw() { n.listed, n.unlisted = false, time.Now() }

// relist announces again what was withdrawn. What has its name from a boot is over with that.
func (n *notice) relist() {
	if over := (n.kind == event.Shutdown || n.kind == event.ASGTermination) && !n.rebooted.IsZero(); !n.listed && !over {
		n.listed, n.announced, n.held = true, time.Now(), false
		n.unsure = n.unsure || n.moving // Its time is another if it was given up meanwhile.
	}
}

// edit changes what is announced.
func (w *world) edit(name string, change func(*notice)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.notices {
		if base, _, _ := strings.Cut(n.name, "@"); base != name && n.name != name {
			continue
		}
		if n.state != event.Pending {
			continue // EC2 never revives an event
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
	w.disturb(0)
}

// deaf makes a document unreadable, or all of the metadata service's.
func (w *world) deaf(h happening) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for kind, d := range w.documents {
		if h.name == string(kind) || h.name == "" && kind != event.Shutdown {
			if !time.Now().Before(d.deaf) {
				d.since = time.Now()
			}
			d.deaf, d.heard = time.Now().Add(h.span), time.Now().Add(h.span)
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
	w.disturb(h.span)
}

// fault makes requests of the verb name, or all, fail in the way kind.
func (w *world) fault(h happening) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = append(w.faults, &fault{verb: h.name, kind: h.kind, until: time.Now().Add(h.span)})
	if h.kind == "403" || h.kind == "html" {
		w.refused = time.Now().Add(h.span + 65*time.Second) // the pause after which it is tried again
	}
	switch h.kind {
	case "late": // Only the first attempts are given up.
		w.hinder(min(h.span, 40*time.Second))
		w.disturb(h.span)
	case "void": // Pods are deleted in time all the same.
		w.disturb(h.span)
	default:
		w.hinder(h.span)
	}
}

// stick has nth's connection lead to a server that is dead inside for so long: it fails in the way kind. Other connections do not.
func (w *world) stick(h happening) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.nth == nil {
		return
	}
	w.faults = append(w.faults, &fault{kind: h.kind, until: time.Now().Add(h.span), on: &connection{w.nth, w.nth.connection}})
	w.muted = time.Now()               // Watches that are open stay so.
	w.hinder(min(h.span, time.Minute)) // By then, three have failed in a row, even if each hangs.
	w.disturb(h.span)
}

// replaceKubeconfig puts another credential in the place of nth's, which is refused until nth has noticed that, after so long.
func (w *world) replaceKubeconfig(h happening) {
	w.server.DropWatches()
	w.fault(happening{kind: "401", span: h.span})
}

// renameNode registers the Node under another name, by which nth begins to act on it. The stand-in has only one name.
func (w *world) renameNode(h happening) {
	w.removeNode(h)
	w.registerNode(h)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.rename != nil {
		w.rename()
	}
}

func (w *world) lag(h happening) {
	w.server.SetLag(int64(h.n), h.span)
	w.obstruct(20 * time.Second)
	time.AfterFunc(20*time.Second, func() { w.server.SetLag(0, 0) })
}

func (w *world) crash(h happening) {
	w.mu.Lock()
	w.kill(w.nth, "for no reason")
	w.mu.Unlock()
	w.beginNow(h.span)
}

func (w *world) beginNow(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.beginIn(d)
}

// crashAt has nth killed at the n-th write of its record from now, before or after it, and start again after a while.
func (w *world) crashAt(h happening) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.nth != nil {
		w.nth.crash, w.nth.before, w.nth.down = w.nth.puts+h.n, h.kind == "before", h.span
	}
}

// forget loses the record, and nth with it.
func (w *world) forget(h happening) {
	w.mu.Lock()
	w.kill(w.nth, "and its record lost")
	w.disk = nil
	w.forgot = time.Now()
	for _, n := range w.notices {
		n.unsure = n.unsure || !n.rebooted.IsZero() // The claim may say that it was over.
		n.rebooted, n.acted, n.seen, n.settled, n.drained, n.vague = time.Time{}, false, time.Time{}, time.Time{}, "", true
		n.held = false
		if !n.lifted.IsZero() {
			n.unsure, n.lifted = true, time.Time{} // where the annotation is gone as well, nobody remembers the uncordon
		}
	}
	w.mu.Unlock()
	w.beginNow(h.span)
}

// hang makes the disk hang.
func (w *world) hang(h happening) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.nth != nil {
		w.power(w.nth)
	}
	w.hung = time.Now().Add(h.span)
	w.disturb(h.span)
}

// fill lets each write to the disk fail, so that what is on it stays as it is.
func (w *world) fill(h happening) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.full || time.Now().Before(w.hung) {
		return
	}
	w.full = true
	if w.nth != nil {
		w.power(w.nth)
		w.breakDisk(w.nth)
	}
	time.AfterFunc(h.span, w.mendDisks)
}

// breakDisk puts something in the place of an incarnation's directory that is none.
func (w *world) breakDisk(i *incarnation) {
	i.broken = true
	dir := w.statePath(i.number)
	w.check(os.Rename(dir, dir+".away"))
	w.check(os.WriteFile(dir, nil, 0o600))
}

// mendDisks lets writes succeed again.
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

// stale kills nth, which finds the record n seconds later as it was before span: of a disk that has been put back.
func (w *world) stale(h happening) {
	w.mu.Lock()
	w.kill(w.nth, "and an old record put in the place of its own")
	w.disk = nil
	for _, s := range w.disks {
		if time.Since(s.at) > h.span {
			w.disk = s.text
		}
	}
	w.forgot = time.Now()
	for _, n := range w.notices {
		n.vague, n.unsure, n.outdated, n.held = true, true, true, false
		n.rebooted, n.acted, n.settled, n.drained, n.lifted = time.Time{}, false, time.Time{}, "", time.Time{}
	}
	w.mu.Unlock()
	w.beginNow(time.Duration(h.n) * time.Second)
}

// mute lets nothing come through the watches, without a word, until nth gives them up.
func (w *world) mute(h happening) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.muted = time.Now().Add(h.span)
	w.hinder(h.span + 15*time.Second)
}

// missedAfter is when a kubelet is missed that has not reported: node-monitor-grace-period of the controller manager.
const missedAfter = 50 * time.Second

// reboot kills nth, which is started again in another boot after span; n seconds later the kubelet reports the node Ready.
func (w *world) reboot(h happening) {
	w.mu.Lock()
	w.kill(w.nth, "in a reboot")
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
	time.AfterFunc(missedAfter, func() { // of a quick reboot, the Node says nothing
		w.mu.Lock()
		current := w.bootID() == id
		w.mu.Unlock()
		if node := w.server.CurrentNode(); current && node != nil && node.Status.NodeInfo.BootID != id {
			w.node(func(n *corev1.Node) { ready(n, corev1.ConditionUnknown) })
		}
	})
	w.beginNow(h.span)
	w.obstruct(h.span + time.Duration(h.n)*time.Second)
	time.AfterFunc(h.span+time.Duration(h.n)*time.Second, func() {
		w.mu.Lock()
		current := w.bootID() == id
		w.mu.Unlock()
		if current {
			w.server.SetBootID(id)
			w.node(func(n *corev1.Node) { ready(n, corev1.ConditionTrue) })
		}
	})
}

func ready(n *corev1.Node, status corev1.ConditionStatus) {
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
}

// survive is what a reboot makes of a notice. It belongs to who has the lock.
func (w *world) survive(n *notice) {
	n.changed = time.Now()
	n.unsure = n.unsure || !n.rebooted.IsZero() // It may have ended with the reboot before.
	if n.moving {                               // In another boot it is another notice, which no uncordon was for.
		n.unsure, n.lifted = true, time.Time{}
	}
	switch {
	case n.kind == event.ASGTermination || n.kind == event.Shutdown:
		if n.kind == event.ASGTermination && n.listed && n.boot == w.boot-1 {
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
		n.unsure = n.unsure || w.full // Nobody may remember that it was acted upon.
	}
	n.rebooted, n.held, n.done = time.Now(), false, n.done || n.drained != ""
	w.documentChanged(n.kind)
}

// node changes the Node, if there is one.
func (w *world) node(change func(*corev1.Node), manager ...string) {
	if w.server.CurrentNode() != nil {
		w.server.ChangeNode(change, manager...)
	}
}

// step sets the machine's clock.
func (w *world) step(h happening) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.offset += h.span
}

// sleep has the machine sleep, by which all that was becomes older.
func (w *world) sleep(h happening) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.any(func(n *notice) bool { return n.listed && n.kind.Local() }) {
		return // it is about to go down
	}
	w.slept.Add(int64(h.span))
	w.cluster.skew += h.span // The API server's clock does not stop.
	w.cluster.sleeps = append(w.cluster.sleeps, sleep{time.Now(), h.span})
	w.server.SetSkew(w.cluster.skew)
	w.booted = w.booted.Add(-h.span)
	for _, n := range w.notices {
		for _, t := range []*time.Time{
			&n.deadline, &n.changed, &n.announced, &n.seen, &n.said, &n.rebooted, &n.lifted, &n.settled, &n.unlisted, &n.ended, &n.missed,
		} {
			if !t.IsZero() {
				*t = t.Add(-h.span)
			}
		}
		n.deadlined = time.Now()
		w.watchDeadline(n)
	}
	w.hinder(0)
}

// recover ends all that is wrong.
func (w *world) recover() {
	w.tell("-- all is well again")
	w.mu.Lock()
	w.faults, w.hung = nil, time.Time{}
	if now := time.Now(); now.Before(w.muted) {
		w.muted = now // A watch that has become mute stays so.
	}
	w.identity = time.Time{}
	rest := min(max(time.Until(w.refused), 0), 65*time.Second) // the longest pause after a refusal
	w.refused = time.Time{}
	for kind, d := range w.documents {
		if time.Now().Before(d.deaf) {
			d.deaf = time.Now()
			w.documentChanged(kind)
		}
	}
	id := w.bootID()
	w.disturb(0)
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
	w.mu.Lock()
	w.cluster.action, w.cluster.actionSet = "", time.Now()
	w.mu.Unlock()
	w.begin()
	time.Sleep(rest)
}

// volume is in use on the node for so long.
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
	w.disturb(h.span)
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

// shutDownKubelet lets the kubelet end all pods, as it does in the machine's shutdown: they stay as they have failed.
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
	w.bother(2 * time.Second)
}

// yieldSlowly adds a budget for a workload that lets one of its pods go at a time.
func (w *world) yieldSlowly(h happening) {
	w.mu.Lock()
	slow := w.cluster.yielding[h.name]
	w.cluster.yielding[h.name] = true
	w.mu.Unlock()
	if slow {
		return // two budgets for one pod would not let it go at all
	}
	w.server.AddBudget(apitest.Budget{
		Namespace: "default", Name: "slow-" + h.name, Selector: map[string]string{"app": h.name}, MaxUnavailable: new(1), Delay: 200 * time.Millisecond,
	})
	w.bother(0)
}

// withdrawAll takes back all that is announced.
func (w *world) withdrawAll() {
	w.tell("-- nothing is announced any more")
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
	w.disturb(0)
}

// longestWithdrawal is how long it may take until nothing stands any more.
func (w *world) longestWithdrawal() time.Duration {
	longest := time.Duration(0)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range w.notices {
		if w.ends(n).After(time.Now().Add(longest)) {
			longest = time.Until(w.ends(n))
		}
	}
	return longest
}

// addPod puts a pod on the node: kind is what sort of pod, span its grace, and n how many seconds it takes to end.
func (w *world) addPod(h happening) {
	if w.server.HasPod("default/" + h.name) {
		return
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: h.name, Labels: map[string]string{"app": h.name}, Annotations: map[string]string{}},
		Spec:       corev1.PodSpec{TerminationGracePeriodSeconds: new(int64(h.span / time.Second))},
		Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: w.server.Now()}}},
	}
	owner := "ReplicaSet"
	ending := apitest.Ending(time.Duration(h.n) * time.Second)
	for _, word := range strings.Split(h.kind, "+") {
		switch word {
		case "daemon":
			owner = "DaemonSet"
		case "bare":
			owner = ""
		case "mirror":
			pod.Annotations[corev1.MirrorPodAnnotationKey] = "hash"
			owner = ""
		case "critical":
			pod.Spec.PriorityClassName = "system-cluster-critical"
		case evict.Never, evict.AtDeadline:
			pod.Annotations[evict.Annotation] = word
		case "stuck":
			pod.Finalizers = []string{"example.com/stuck"}
		case "fat":
			pod.Spec.Containers = []corev1.Container{{Name: "main", Args: []string{strings.Repeat("x", 10_000)}}}
		case "finished":
			pod.Status.Phase = corev1.PodSucceeded
		case "hangs":
			ending = apitest.Never
			w.hangs("default/" + h.name)
		}
	}
	if owner != "" {
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: owner, Name: h.name, UID: "uid-of-owner", Controller: new(true)}}
	}
	apitest.Ready(pod)
	if h.what == "late-pod" {
		w.server.AddPodLate(pod, time.Second, ending)
		w.bother(time.Second)
		return
	}
	w.server.AddPod(pod, ending)
	w.bother(0)
}

// addWorkload adds a controller with n pods.
func (w *world) addWorkload(h happening) {
	work := apitest.Workload{
		Name: h.name, Pods: h.n, Ending: apitest.Ending(time.Second), Delay: 300 * time.Millisecond, Starts: time.Second,
		Tolerates: strings.Contains(h.kind, "tolerates"),
		Pod: func(p *corev1.Pod) {
			p.Labels = map[string]string{"app": h.name}
			p.Spec.TerminationGracePeriodSeconds = new(int64(h.span / time.Second))
		},
	}
	w.mu.Lock()
	w.cluster.returning[h.name] = work.Tolerates
	w.mu.Unlock()
	switch {
	case strings.HasPrefix(h.kind, "stateful"):
		w.server.AddStatefulSet(work)
	case strings.HasPrefix(h.kind, "daemon"):
		w.server.AddDaemonSet(work)
	default:
		w.server.AddReplicaSet(work)
	}
	w.bother(2 * time.Second)
}

// annotate says when a pod may be evicted.
func (w *world) annotate(h happening) {
	name := "default/" + h.name
	if !w.server.HasPod(name) {
		return
	}
	w.server.ChangePod(name, func(p *corev1.Pod) {
		if p.Annotations == nil {
			p.Annotations = map[string]string{}
		}
		p.Annotations[evict.Annotation] = h.kind
	})
	w.mu.Lock()
	w.cluster.annotated[name] = time.Now()
	w.mu.Unlock()
	w.bother(0)
}

// balancers take the machine out in a while, or cannot be asked.
type balancers struct {
	world *world
	wait  time.Duration
	kind  string
}

func (b balancers) Wait(ctx context.Context, _ wait.Node, tell func(string)) error {
	tell("a target")
	if !loop.Await(ctx, nil, b.wait) {
		return ctx.Err()
	}
	if b.kind == "unknown" {
		return errors.New("it cannot be told")
	}
	return nil
}

// guardPods adds a budget that never yields.
func (w *world) guardPods(h happening) {
	w.server.AddBudget(apitest.Budget{Namespace: "default", Name: h.name, Selector: map[string]string{"app": h.name}, MinAvailable: new(100)})
	w.mu.Lock()
	w.cluster.guarded[h.name] = true
	w.mu.Unlock()
	w.bother(0)
}

// finish takes the finalizers off a pod.
func (w *world) finish(name string) {
	if w.server.HasPod("default/" + name) {
		w.server.ChangePod("default/"+name, func(p *corev1.Pod) { p.Finalizers = nil })
	}
	w.bother(0)
}

// yield removes a budget.
func (w *world) yield(h happening) {
	w.server.RemoveBudget("default", h.name)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cluster.guarded[h.name] = false
	w.disturb(0)
}
