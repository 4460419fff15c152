package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/nth-project/nth/cmd/internal/counting"
	"github.com/nth-project/nth/cmd/internal/program"
	"github.com/nth-project/nth/pkg/agent"
	"github.com/nth-project/nth/pkg/config"
	"github.com/nth-project/nth/pkg/drain"
	"github.com/nth-project/nth/pkg/imds"
	"github.com/nth-project/nth/pkg/kubelet"
	"github.com/nth-project/nth/pkg/notify"
	"github.com/nth-project/nth/pkg/policy"
	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/systemd"
)

// notices are those who pass on what happens.
type notices struct {
	listeners []agent.Listener
	work      []func(context.Context) // of the listeners; each ends soon after its context
	rules     atomic.Pointer[policy.Settings]
	// waiting counts the notices that wait for the webhook.
	waiting func() int
	// reposted lets the webhook follow other settings.
	reposted func(config.Config)
}

// told is what those who pass something on are made of.
type told struct {
	identity *kubelet.Kubelet
	record   *record.Store
	machine  *machine
	alive    func() bool // the daemon does its work
	counts   counting.Counts
	log      *logrus.Entry
}

func newNotices(cfg config.Config, from told) *notices {
	n := &notices{}
	n.use(policyOf(cfg.Events))
	n.addKubernetes(cfg, from)
	n.addWebhook(cfg, from)
	return n
}

// use replaces the rules by which things are described.
func (n *notices) use(rules policy.Settings) { n.rules.Store(&rules) }

func (n *notices) add(l agent.Listener, work func(context.Context)) {
	n.listeners = append(n.listeners, l)
	n.work = append(n.work, work)
}

// around runs the daemon while what it tells is passed on. The listeners end after it, so that they hear its last word; one that hangs is
// left behind.
func (n *notices) around(run func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		passing, stop := context.WithCancel(context.WithoutCancel(ctx))
		var passed sync.WaitGroup
		for _, work := range n.work {
			passed.Go(func() { work(passing) })
		}
		defer func() {
			stop()
			program.Within(program.LastWords, passed.Wait)
		}()
		return run(ctx)
	}
}

// trouble returns what tells the journal that something could not be passed on.
func (f told) trouble() func(error) {
	return func(err error) { f.log.WithField(systemd.FieldMessageID, systemd.NoticeTrouble).Warn(err) }
}

// addKubernetes adds what tells the cluster. A dry run writes its heartbeat there, and nothing else.
func (n *notices) addKubernetes(cfg config.Config, from told) {
	cluster := cfg.Kubernetes.ToldCluster
	if cfg.DryRun {
		cluster = config.ToldCluster{Condition: cluster.Condition && cfg.Kubernetes.Heartbeat > 0}
	}
	if !cluster.Condition && !cluster.LifecycleConditions && !cluster.Events {
		return
	}
	k := notify.NewKubernetes(notify.KubernetesOptions{
		Identity: func(ctx context.Context) (notify.Identity, error) {
			id, err := from.identity.Identity(ctx)
			return notify.Identity{Client: id.Client, Node: id.Node}, err
		},
		Entries:     from.record.Entries,
		Rules:       func() policy.Settings { return *n.rules.Load() },
		Condition:   cluster.Condition,
		Heartbeat:   cfg.Kubernetes.Heartbeat,
		Alive:       from.alive,
		DryRun:      cfg.DryRun,
		Lifecycle:   cluster.LifecycleConditions,
		Writer:      drain.Host,
		Events:      cluster.Events,
		Source:      cluster.EventSource,
		Annotations: cluster.EventAnnotations,
		Describe:    func(ctx context.Context) map[string]string { return annotationsOf(from.machine.describe(ctx)) },
		Dropped:     from.counts.EventsDropped,
		Trouble:     from.trouble(),
	})
	n.add(k, k.Run)
}

// annotationsOf are the annotations of Events by which people tell machines apart, by the names that the
// container-based handler gives them. All are there, also where a machine has no such thing.
func annotationsOf(i imds.Instance) map[string]string {
	return map[string]string{
		"account-id":          i.Account,
		"availability-zone":   i.Zone,
		"instance-id":         i.ID,
		"instance-life-cycle": i.LifeCycle,
		"instance-type":       i.Type,
		"local-hostname":      i.LocalName,
		"local-ipv4":          i.LocalIP,
		"public-hostname":     i.PublicName,
		"public-ipv4":         i.PublicIP,
		"region":              i.Region,
	}
}

// machine is the description of this machine. It is asked for when it is first wanted, which is when something is
// announced, and not by what is urgent.
type machine struct {
	ask func(context.Context) (imds.Instance, error)

	mu    sync.Mutex
	known imds.Instance
	again time.Time // when to ask again for what could not be read; zero if it has not been asked
	whole bool
}

// describeAgain is how long an incomplete description is good enough.
const describeAgain = 30 * time.Second

// describe returns what could be read of the description so far, within ctx.
func (m *machine) describe(ctx context.Context) imds.Instance {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.whole || time.Now().Before(m.again) {
		return m.known
	}
	known, err := m.ask(ctx) // what is missing is trouble of the metadata service, which is told elsewhere
	m.known, m.whole, m.again = known, err == nil, time.Now().Add(describeAgain)
	return known
}
