package simulation_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nth-project/nth/pkg/event"
)

// generator makes a plan from a seed. Each plan draws from a few of the sorts of happenings only: so two things meet more often.
type generator struct {
	*rand.Rand
	plan  plan
	at    time.Duration // of the next happening
	names []string      // of the notices so far
	pods  []string
	works []string // controllers
	// budget is how much time a lifecycle hook without a deadline gives.
	budget time.Duration
	next   int    // the number in the next name
	sorts  []sort // from which this plan draws
}

// sort is one sort of happenings, which is drawn as often as its weight says.
type sort struct {
	weight int
	make   func(*generator)
}

// generate makes the plan of a seed: always the same.
func generate(seed uint64) plan {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 0))}
	if g.IntN(4) == 0 {
		g.calm()
		return g.plan.sorted()
	}
	g.setUp()
	if seed%4 == 0 { // This draws nothing, so that other plans stay as they were.
		g.plan = append(g.plan, happening{what: "reboots"}, happening{what: "code", name: "system-reboot", kind: "now"}, happening{
			at: time.Duration(seed%120) * time.Second, what: "announce", name: "own-hour", kind: "scheduled-maintenance/system-reboot", span: 10 * time.Minute,
		})
	}
	for _, s := range sorts {
		if g.IntN(100) < 45 {
			g.sorts = append(g.sorts, s)
		}
	}
	for range 4 + g.IntN(22) {
		g.pause()
		if g.IntN(3) == 0 || len(g.names) == 0 || len(g.sorts) == 0 {
			g.announce()
			continue
		}
		g.one()
	}
	return g.plan.sorted()
}

// calm makes a plan in which little happens at a time. The machine will be lost, in time for pods that resist, and what else happens need not
// keep nth from its work.
func (g *generator) calm() {
	g.maybe(2, happening{what: "hard", n: 1})
	g.maybe(3, happening{what: "option", name: "exclude", span: g.span(20 * time.Second)})
	g.maybe(4, happening{what: "option", name: "evict-after", span: g.span(20 * time.Second)})
	g.maybe(5, happening{what: "option", name: "targets", kind: g.pick("out", "unknown"), span: g.span(20 * time.Second)})
	if g.IntN(4) == 0 {
		g.add(happening{what: "option", name: "volumes", span: 5*time.Second + g.volumeWait()})
		g.add(happening{what: "volume", name: g.name("volume"), span: 30*time.Second + g.span(3*time.Minute)})
	}
	g.maybe(10, happening{what: "fault", name: "read", kind: "late", span: 10 * time.Minute})
	// A minute and more is left before each deadline.
	g.budget = 70*time.Second + g.span(50*time.Second)
	g.add(happening{what: "budget", span: g.budget})
	// A few plans are about nothing but a reboot, or a pod in the last moment.
	switch g.IntN(10) {
	case 0:
		g.rebooting()
		return
	case 1:
		g.rush()
		return
	}
	for range 1 + g.IntN(5) {
		g.addPod("pod")
	}
	if g.IntN(2) == 0 {
		g.addWorkload()
	}
	// The machine is lost once or twice, and what happens before is of two sorts at most.
	few := []sort{calmSorts[g.IntN(len(calmSorts))], calmSorts[g.IntN(len(calmSorts))]}
	for range 1 + g.IntN(2) {
		g.at += g.span(10 * time.Second)
		for range g.IntN(3) {
			g.add(happening{what: "guard", name: g.some(g.pods)})
		}
		began, left := g.at, g.announceLoss()
		for range g.IntN(3) {
			g.at += g.span(left / 2)
			few[g.IntN(2)].make(g)
		}
		g.at = max(g.at, began+left) + g.span(20*time.Second)
		if g.IntN(2) == 0 {
			g.add(happening{what: "withdraw", name: g.names[len(g.names)-1]})
			g.at += 50 * time.Second
		}
	}
}

// announceLoss announces that the machine will be lost, and returns in what time.
func (g *generator) announceLoss() (left time.Duration) {
	h := happening{what: "announce"}
	switch g.IntN(4) {
	case 0:
		h.name, h.kind, h.span = g.name("spot"), "spot-interruption/terminate", 70*time.Second+g.span(50*time.Second)
	case 1:
		h.name, h.kind, h.span = g.name("maintenance"), "scheduled-maintenance/instance-stop", 70*time.Second+g.span(60*time.Second)
	case 2:
		h.name, h.kind = g.name("asg"), "asg-termination/Terminated"
	case 3:
		h.name, h.kind, h.span = g.name("shutdown"), "shutdown", 70*time.Second+g.span(50*time.Second)
	}
	g.names = append(g.names, h.name)
	g.add(h)
	if h.span == 0 {
		return g.budget
	}
	return h.span
}

// calmSorts are the sorts of happenings from which a calm plan draws two.
var calmSorts = []sort{
	{1, func(g *generator) { g.addPod("pod") }},
	{1, func(g *generator) { g.addPod("late-pod") }},
	{1, func(g *generator) {
		g.add(happening{what: "annotate", name: g.some(g.pods), kind: g.pick("never", "at-deadline", "whenever")})
	}},
	{1, func(g *generator) { g.add(happening{what: "yield", name: g.some(g.pods)}) }},
	{1, func(g *generator) { g.add(happening{what: "admin", kind: g.pick("cordon", "uncordon", "recordon")}) }},
	{1, func(g *generator) { g.add(happening{what: "crash", span: g.span(8 * time.Second)}) }},
	{1, func(g *generator) {
		verb := g.pick("", "get", "patch", "list", "watch", "evict")
		g.add(happening{what: "fault", name: verb, kind: faultKinds[g.IntN(len(faultKinds))], span: g.span(12 * time.Second)})
	}},
	{1, (*generator).trouble},
	{1, func(g *generator) { g.add(happening{what: "full", span: g.span(time.Minute)}) }},
	{1, func(g *generator) { g.add(happening{what: "mute", span: g.span(20 * time.Second)}) }},
	{1, (*generator).rush},
	{2, (*generator).rebooting},
	{2, (*generator).uncordoning},
	{1, func(g *generator) { g.add(happening{what: "drop"}) }},
	{1, func(g *generator) { g.add(happening{what: "deaf", span: g.span(20 * time.Second)}) }},
	{1, func(g *generator) { g.add(happening{what: "withdraw", name: g.some(g.names)}) }},
	{1, func(g *generator) { g.announce() }},
	{1, func(g *generator) {
		g.add(happening{what: "volume", name: g.name("volume"), span: g.span(time.Minute)})
	}},
}

// add adds a happening to the plan, at the present time of the plan.
func (g *generator) add(h happening) {
	h.at = g.at
	g.plan = append(g.plan, h)
}

// maybe adds a happening in one of so many plans.
func (g *generator) maybe(oneOf int, h happening) {
	if g.IntN(oneOf) == 0 {
		g.add(h)
	}
}

// pick returns one of the words.
func (g *generator) pick(words ...string) string { return words[g.IntN(len(words))] }

// span returns a random time. Half of them are at most an eighth of most.
func (g *generator) span(most time.Duration) time.Duration {
	d := time.Duration(g.Int64N(int64(most)))
	if g.IntN(2) == 0 {
		d /= 8
	}
	return d.Round(100 * time.Millisecond)
}

// pause moves the time of the plan on: mostly by little, sometimes by enough for the node to come to rest.
func (g *generator) pause() {
	switch g.IntN(10) {
	case 0:
		g.at += 50*time.Second + g.span(40*time.Second)
	case 1, 2:
		g.at += g.span(30 * time.Second)
	case 3:
	default:
		g.at += g.span(8 * time.Second)
	}
}

// one adds a happening of one of the plan's sorts.
func (g *generator) one() {
	total := 0
	for _, s := range g.sorts {
		total += s.weight
	}
	n := g.IntN(total)
	for _, s := range g.sorts {
		if n -= s.weight; n < 0 {
			s.make(g)
			return
		}
	}
}

// setUp adds how things are at the beginning: clocks, rules, options, pods.
func (g *generator) setUp() {
	g.maybe(4, happening{what: "skew", span: time.Duration(g.IntN(600)-300) * time.Second})
	g.maybe(4, happening{what: "clock", span: time.Duration(g.IntN(600)-300) * time.Second})
	for _, kind := range event.Kinds() {
		switch g.IntN(12) {
		case 0:
			g.add(happening{what: "rule", name: string(kind), kind: g.pick("cordon", "notify", "ignore")})
		case 1:
			g.add(happening{what: "rule", name: string(kind), kind: "drain"})
		}
	}
	g.maybe(3, happening{what: "rule", name: string(event.RebalanceRecommendation), kind: g.pick("cordon", "drain")})
	g.maybe(4, happening{what: "cordon-for", span: 30*time.Second + g.span(2*time.Minute)})
	g.maybe(4, happening{what: "hard", n: 1})
	g.maybe(3, happening{what: "budget", span: 20*time.Second + g.span(3*time.Minute)})
	g.maybe(2, happening{what: "option", name: "exclude", span: g.span(20 * time.Second)})
	g.maybe(5, happening{what: "option", name: "evict-after", span: g.span(20 * time.Second)})
	g.maybe(8, happening{what: "option", name: "protect-unmanaged"})
	if g.IntN(6) == 0 {
		g.add(happening{what: "option", name: "volumes", span: g.volumeWait()})
		g.add(happening{what: "volume", name: g.name("volume"), span: g.span(4 * time.Minute)})
	}
	g.maybe(5, happening{what: "option", name: "targets", kind: g.pick("out", "unknown"), span: g.span(20 * time.Second)})
	g.maybe(8, happening{what: "credential", span: g.span(time.Minute)})
	if g.IntN(12) == 0 {
		g.add(happening{what: "unnode"})
		defer func() {
			was := g.at
			g.at += g.span(time.Minute)
			g.add(happening{what: "node"})
			g.at = was
		}()
	}
	for range g.IntN(6) {
		g.addPod("pod")
	}
	if g.IntN(3) == 0 {
		g.addWorkload()
	}
}

// volumeWait returns a random value of the setting volume_wait: mostly short, sometimes up to its maximum.
func (g *generator) volumeWait() time.Duration {
	if g.IntN(3) == 0 {
		return g.span(time.Hour)
	}
	return g.span(30 * time.Second)
}

// name returns a name that is not used yet.
func (g *generator) name(prefix string) string {
	g.next++
	return fmt.Sprintf("%s-%d", prefix, g.next)
}

// announce announces an event of any kind.
func (g *generator) announce() {
	h := happening{what: "announce"}
	switch g.IntN(10) {
	case 0, 1, 2:
		h.name, h.kind = g.name("spot"), "spot-interruption/"+g.pick("terminate", "terminate", "stop", "hibernate")
		h.span = 120 * time.Second
		if g.IntN(4) == 0 {
			h.span = g.span(2*time.Minute) - 20*time.Second
		}
	case 3:
		h.name, h.kind = g.name("rebalance"), "rebalance-recommendation"
	case 4, 5, 6:
		h.name = g.name("maintenance")
		h.kind = "scheduled-maintenance/" + g.pick("system-reboot", "instance-reboot", "instance-stop", "instance-retirement", "system-maintenance")
		h.span = g.span(8*time.Minute) - 20*time.Second
	case 7, 8:
		h.name, h.kind = g.name("asg"), "asg-termination/Terminated"
		if g.IntN(3) == 0 {
			h.span = g.span(4 * time.Minute)
		}
	case 9:
		h.name, h.kind, h.span = g.name("shutdown"), "shutdown", 20*time.Second+g.span(2*time.Minute)
	}
	g.names = append(g.names, h.name)
	g.add(h)
}

// addPod adds a pod of any sort. what is pod or late-pod.
func (g *generator) addPod(what string) {
	h := happening{what: what, name: g.name("pod"), kind: "plain", span: time.Duration(1+g.IntN(40)) * time.Second, n: g.IntN(10)}
	if g.IntN(2) == 0 {
		h.kind = g.pick("daemon", "bare", "mirror", "critical", "never", "at-deadline", "stuck", "hangs", "fat", "finished")
	}
	g.pods = append(g.pods, h.name)
	g.add(h)
}

// addWorkload adds a controller of any sort, some with a budget.
func (g *generator) addWorkload() {
	h := happening{what: "workload", name: g.name("work"), span: time.Duration(1+g.IntN(20)) * time.Second, n: 1 + g.IntN(3)}
	h.kind = g.pick("replicas", "replicas", "replicas+tolerates", "stateful", "stateful+tolerates", "daemon")
	g.works = append(g.works, h.name)
	g.add(h)
	g.maybe(3, happening{what: "yields", name: h.name})
}

// some returns one of the names, or one that nothing has if names is empty.
func (g *generator) some(names []string) string {
	if len(names) == 0 {
		return "nobody"
	}
	return names[g.IntN(len(names))]
}

// rush adds a pod just before the node has to be closed, while the API server's cache is behind.
func (g *generator) rush() {
	g.maybe(2, happening{what: "mute", span: 10 * time.Second})
	g.add(happening{what: "lag", span: 4*time.Second + g.span(8*time.Second)})
	g.at += g.span(2 * time.Second)
	g.addPod("pod")
	g.at += 1200*time.Millisecond + g.span(time.Second)
	g.announceLoss()
}

// rebooting announces a reboot, and reboots the machine near that time.
func (g *generator) rebooting() {
	name := g.name("maintenance")
	g.names = append(g.names, name)
	g.add(happening{what: "announce", name: name, kind: "scheduled-maintenance/" + g.pick("system-reboot", "instance-reboot"), span: 40*time.Second + g.span(time.Minute)})
	g.at += 20*time.Second + g.span(time.Minute)
	g.maybe(2, happening{what: g.pick("complete", "withdraw"), name: name})
	g.add(happening{what: "reboot", span: g.span(20 * time.Second), n: 5 + g.IntN(40)})
	g.at += g.span(30 * time.Second)
}

// uncordoning lets an operator uncordon the node. Then pods come, nth crashes or another event is announced.
func (g *generator) uncordoning() {
	g.at += 20*time.Second + g.span(20*time.Second)
	g.add(happening{what: "admin", kind: "uncordon"})
	for range 1 + g.IntN(3) {
		g.at += g.span(10 * time.Second)
		switch g.IntN(6) {
		case 0:
			g.add(happening{what: "crash", span: g.span(8 * time.Second)})
		case 1:
			g.announce()
		default:
			g.addPod(g.pick("pod", "late-pod"))
		}
	}
}

// trouble adds a lasting fault between nth and the API server.
func (g *generator) trouble() {
	switch g.IntN(5) {
	case 0:
		g.add(happening{what: "fault", name: "read", kind: "late", span: g.span(4 * time.Minute)})
	case 1:
		g.add(happening{what: "fault", name: "evict", kind: "void", span: g.span(4 * time.Minute)})
	case 2, 3:
		g.add(happening{what: "stuck", kind: g.pick("500", "hang"), span: g.span(4 * time.Minute)})
	case 4:
		g.add(happening{what: "kubeconfig", span: g.span(20 * time.Second)})
	}
}

// sorts are all sorts of happenings. That something is announced is drawn apart from these.
var sorts = []sort{
	{4, func(g *generator) { g.add(happening{what: "withdraw", name: g.some(g.names)}) }},
	{2, func(g *generator) { g.add(happening{what: "return", name: g.some(g.names)}) }},
	{2, func(g *generator) { g.add(happening{what: g.pick("cancel", "complete"), name: g.some(g.names)}) }},
	{2, func(g *generator) {
		g.add(happening{what: "move", name: g.some(g.names), span: g.span(8*time.Minute) - 20*time.Second})
	}},
	{2, func(g *generator) {
		h := happening{what: "deaf", span: g.span(30 * time.Second)}
		if g.IntN(2) == 0 {
			h.name = string(event.Kinds()[g.IntN(5)])
		}
		g.add(h)
	}},
	{4, func(g *generator) {
		verb := g.pick("", "get", "patch", "list", "watch", "evict", "delete")
		g.add(happening{what: "fault", name: verb, kind: faultKinds[g.IntN(len(faultKinds))], span: g.span(25 * time.Second)})
	}},
	{3, (*generator).trouble},
	{1, func(g *generator) { g.add(happening{what: "rename"}) }},
	{1, func(g *generator) { g.add(happening{what: g.pick("drop", "expire")}) }},
	{1, func(g *generator) { g.add(happening{what: "lag", span: g.span(6 * time.Second)}) }},
	{3, func(g *generator) { g.add(happening{what: "crash", span: g.span(time.Minute)}) }},
	{3, func(g *generator) {
		g.add(happening{what: "crash-at", kind: g.pick("before", "after"), n: 1 + g.IntN(5), span: g.span(20 * time.Second)})
	}},
	{1, func(g *generator) { g.add(happening{what: "stop", span: g.span(time.Minute)}) }},
	{1, func(g *generator) { g.add(happening{what: "forget", span: g.span(20 * time.Second)}) }},
	{1, func(g *generator) { g.add(happening{what: "disk", span: g.span(30 * time.Second)}) }},
	{1, func(g *generator) { g.add(happening{what: "full", span: g.span(2 * time.Minute)}) }},
	{1, func(g *generator) { g.add(happening{what: "mute", span: g.span(30 * time.Second)}) }},
	{1, func(g *generator) { g.add(happening{what: "dying"}) }},
	{1, func(g *generator) {
		g.add(happening{what: "volume", name: g.name("volume"), span: g.span(time.Minute)})
	}},
	{1, func(g *generator) { g.add(happening{what: "yields", name: g.some(g.works)}) }},
	{2, func(g *generator) { g.add(happening{what: "reboot", span: g.span(time.Minute), n: g.IntN(40)}) }},
	{1, (*generator).rush},
	{1, (*generator).rebooting},
	{1, (*generator).uncordoning},
	{4, func(g *generator) { g.addPod("pod") }},
	{2, func(g *generator) { g.addPod("late-pod") }},
	{1, func(g *generator) { g.addWorkload() }},
	{2, func(g *generator) {
		g.add(happening{what: "annotate", name: g.some(g.pods), kind: g.pick("never", "at-deadline", "whenever")})
	}},
	{2, func(g *generator) { g.add(happening{what: g.pick("guard", "guard", "yield"), name: g.some(g.pods)}) }},
	{1, func(g *generator) { g.add(happening{what: "finish", name: g.some(g.pods)}) }},
	{3, func(g *generator) {
		g.add(happening{what: "admin", kind: g.pick("cordon", "uncordon", "erase", "recordon")})
	}},
	{2, func(g *generator) {
		g.add(happening{what: "admin", kind: g.pick("ignore", "notify", "cordon", "none", "none")})
	}},
	{2, func(g *generator) { g.add(happening{what: "queue", kind: g.pick("cordon", "lift")}) }},
	{1, func(g *generator) { g.add(happening{what: "karpenter", kind: g.pick("on", "off")}) }},
	{1, func(g *generator) { g.add(happening{what: "label"}) }},
	{1, func(g *generator) { g.add(happening{what: g.pick("unnode", "node")}) }},
	{1, func(g *generator) {
		g.add(happening{what: "clock", span: time.Duration(g.IntN(240)-120) * time.Minute / 10})
	}},
	{1, func(g *generator) {
		g.add(happening{what: "clock", span: time.Duration(g.IntN(2000)-1000) * time.Hour / 10})
	}},
	{1, func(g *generator) { g.add(happening{what: "sleep", span: g.span(5 * time.Minute)}) }},
	{1, func(g *generator) { g.add(happening{what: "sleep", span: g.span(20 * time.Hour)}) }},
	{1, func(g *generator) { // The clock is set while nth does not run.
		g.add(happening{what: "crash", span: 2*time.Second + g.span(20*time.Second)})
		g.at += time.Second
		g.add(happening{what: "clock", span: time.Duration(g.IntN(240)-120) * time.Minute / 10})
	}},
	{1, func(g *generator) { g.add(happening{what: "scale", name: g.some(g.works)}) }},
	{1, func(g *generator) {
		g.add(happening{what: "code", name: g.pick("system-reboot", "instance-reboot", "instance-stop", "instance-retirement"), kind: g.pick("now", "lead", "window", "notify", "ignore")})
	}},
	{2, func(g *generator) {
		kind := event.Kinds()[g.IntN(len(event.Kinds()))]
		g.add(happening{what: "rule", name: string(kind), kind: g.pick("drain", "drain", "cordon", "notify", "ignore")})
	}},
	{1, func(g *generator) { g.add(happening{what: "hibernate", kind: g.pick("drain", "cordon", "notify")}) }},
	{1, func(g *generator) { g.add(happening{what: "hard", n: g.IntN(2)}) }},
	{1, func(g *generator) { g.add(happening{what: "lead", span: g.span(5 * time.Minute)}) }},
	{1, func(g *generator) { g.add(happening{what: "cordon-for", span: g.span(3 * time.Minute)}) }},
	{1, func(g *generator) { g.add(happening{what: "budget", span: 10*time.Second + g.span(4*time.Minute)}) }},
}

// happening is one step of a plan. What its fields mean depends on what happens: see happenings.
type happening struct {
	at   time.Duration
	what string
	name string
	kind string
	span time.Duration
	n    int
}

// plan is a history before it happens: happenings, sorted by time.
type plan []happening

// String is a line of a plan, as parse reads it.
func (h happening) String() string {
	text := fmt.Sprintf("%s %s", h.at, h.what)
	if h.name != "" {
		text += " name=" + h.name
	}
	if h.kind != "" {
		text += " kind=" + h.kind
	}
	if h.span != 0 {
		text += " for=" + h.span.String()
	}
	if h.n != 0 {
		text += " n=" + strconv.Itoa(h.n)
	}
	return text
}

// String is a plan as parse reads it.
func (p plan) String() string {
	var text strings.Builder
	for _, h := range p {
		text.WriteString(h.String() + "\n")
	}
	return text.String()
}

// sorted returns the plan sorted by time. Happenings of one time keep their sequence.
func (p plan) sorted() plan {
	p = slices.Clone(p)
	slices.SortStableFunc(p, func(a, b happening) int { return int(a.at - b.at) })
	return p
}

// started returns the plan with the start of nth, after all happenings of the time 0.
func (p plan) started() plan {
	at := 0
	for at < len(p) && p[at].at == 0 {
		at++
	}
	return slices.Insert(slices.Clone(p), at, happening{what: "start"})
}

// parse reads a plan: a happening in each line, and comments behind #.
func parse(text string) (plan, error) {
	var p plan
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		h, err := parseHappening(words)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", strings.TrimSpace(line), err)
		}
		p = append(p, h)
	}
	return p.sorted(), nil
}

// parseHappening reads one line, which is split into words: the time, what happens, and key=value for each other field.
func parseHappening(words []string) (h happening, err error) {
	if len(words) < 2 {
		return h, fmt.Errorf("a happening has a time and a name")
	}
	if h.at, err = time.ParseDuration(words[0]); err != nil {
		return h, err
	}
	h.what = words[1]
	for _, word := range words[2:] {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "name":
			h.name = value
		case "kind":
			h.kind = value
		case "for":
			h.span, err = time.ParseDuration(value)
		case "n":
			h.n, err = strconv.Atoi(value)
		default:
			err = fmt.Errorf("%q is not understood", key)
		}
		if err != nil {
			return h, err
		}
	}
	return h, nil
}
