// Package traffic counts the requests that are lost with a node. Two machines have a real kubelet and real containers; on
// them run two Services, each of which clients ask at a steady pace. Then EC2 announces that it takes one machine, and
// does, and what becomes of each request depends on who has done what meanwhile:
//
//	result := traffic.Run(t, cp, traffic.Nth, traffic.Short)
//
// The clients do what kube-proxy does for them: they follow the EndpointSlices, a second late, send each request over a
// connection of its own to a ready endpoint and, where there is none, to one that terminates and still serves.
//
// What is not as in a cluster: there is no network of pods, so that a client finds a pod's address by its name; and a
// machine that is gone refuses connections, where on EC2 it would let them wait.
package traffic

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/node"
)

// Options say how long things take.
type Options struct {
	// Notice is how long before the machine's end it is announced to those who act on it, and After is for how long requests are counted
	// after the end.
	Notice, After time.Duration
}

// Full is how it is on EC2: a notice of two minutes. Short is the same in less time.
var (
	Full  = Options{Notice: 2 * time.Minute, After: time.Minute}
	Short = Options{Notice: time.Minute, After: 8 * time.Second}
)

const (
	// rate is how many requests a second each Service gets.
	rate = 80
	// unheeded is how long before the machine's end it is announced where nothing acts on that, since nothing happens in it.
	unheeded = 10 * time.Second
	// ends is how long a server serves on after SIGTERM, and grace how long it may at most; prepares is how long a pod takes to be ready.
	ends, grace, prepares = 8 * time.Second, 20 * time.Second, 3 * time.Second
)

// The Services. Each has two pods.
const (
	// Whole has both on the machine that goes, and a budget that wants one.
	Whole = "shop"
	// Guarded has one there and one elsewhere, and a budget that wants both, so that no eviction is granted.
	Guarded = "search"
)

// Services are all of them, in the order of the table.
func Services() []string { return []string{Whole, Guarded} }

// A Result is what has come of a way.
type Result struct {
	Way    Way
	Counts []Count // in the order of Services
	// End is when the machine's power was cut or its button pressed, and Notice when that was announced.
	Notice, End time.Time
}

// Count is that of a Service.
func (r Result) Count(service string) Count {
	return r.Counts[slices.IndexFunc(r.Counts, func(c Count) bool { return c.Service == service })]
}

// A scene is two machines with Services under load.
type scene struct {
	cp     *lab.ControlPlane
	stays  *node.Node
	doomed *node.Node
	client *http.Client
	views  map[string]*view
	loads  map[string]*load

	mu        sync.Mutex
	addresses map[string]string // by pod
}

// Run boots the machines, has one taken away, and counts.
func Run(t lab.TB, cp *lab.ControlPlane, way Way, o Options) Result {
	t.Helper()
	s := furnish(t, cp, way)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var running sync.WaitGroup
	defer func() {
		stop()
		running.Wait()
	}()
	s.watch(t)
	flow, dam := context.WithCancel(ctx)
	defer dam()
	for _, load := range s.loads {
		running.Go(func() { load.run(flow) })
	}
	lab.Await(t, "every Service answers", func() bool {
		for _, load := range s.loads {
			if load.soFar().Sent < rate {
				return false
			}
		}
		return true
	})
	r := Result{Way: way}
	r.Notice, r.End = s.interrupt(ctx, t, way, o, &running)
	time.Sleep(o.After)
	dam()
	for _, service := range Services() {
		count := s.loads[service].total()
		count.Service = service
		r.Counts = append(r.Counts, count)
	}
	return r
}

// furnish boots the machines and puts the Services there. The machine that stays is the one that the pods of the other
// may go to.
func furnish(t lab.TB, cp *lab.ControlPlane, way Way) *scene {
	t.Helper()
	s := &scene{
		cp:     cp,
		client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
		views:  map[string]*view{}, loads: map[string]*load{},
		addresses: map[string]string{},
	}
	s.stays = node.Start(t, cp, node.Options{})
	with := way.node
	with.Beside = s.stays
	s.doomed = node.Start(t, cp, with)
	options := func(more ...lab.Option) []lab.Option {
		return append([]lab.Option{node.Ends(ends.String()), lab.Grace(grace), node.Prepares(prepares)}, more...)
	}
	home := s.stays.Node
	home.AddDeployment(t, Guarded, 2, options(spread, lab.MinAvailable(2))...)
	home.Cordon(t)
	home.AddDeployment(t, Whole, 2, options(lab.MinAvailable(1))...)
	home.Uncordon(t)
	home.WaitReady(t)
	if pods := s.doomed.Node.Pods(t); len(pods) != 3 {
		t.Fatalf("furnishing the machines: %d pods are on the one that goes, want 3", len(pods))
	}
	for _, service := range Services() {
		cp.Kubectl(t, "", "expose", "deployment", service, "--namespace="+home.Namespace, "--port=80")
		s.views[service] = &view{}
		s.loads[service] = &load{send: s.sender(service)}
	}
	return s
}

// spread puts the pods on different nodes, of those that take any.
var spread = lab.Edit(func(template *corev1.PodTemplateSpec) {
	honor := corev1.NodeInclusionPolicyHonor
	template.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule, NodeTaintsPolicy: &honor,
		LabelSelector: &metav1.LabelSelector{MatchLabels: template.Labels},
	}}
})

// sender sends requests to a Service.
func (s *scene) sender(service string) func(context.Context) error {
	return func(ctx context.Context) error {
		to, ok := pick(s.views[service].usable())
		if !ok {
			return errNobody
		}
		return ask(ctx, s.client, s.address(to))
	}
}

// address is where a pod answers, which it has written down.
func (s *scene) address(e endpoint) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.addresses[e.pod] == "" {
		on := s.stays
		if e.node == s.doomed.Node.Name {
			on = s.doomed
		}
		if life, err := on.Read(e.pod); err == nil {
			s.addresses[e.pod] = life.Address
		}
	}
	return s.addresses[e.pod]
}

// watch has the views and the load balancer follow the cluster until ctx ends, and returns when they know all endpoints.
func (s *scene) watch(t lab.TB) {
	t.Helper()
	for _, service := range Services() {
		follow(t, s.cp.Admin, s.stays.Node.Namespace, service, s.views[service])
	}
	lab.Await(t, "the clients know all endpoints", func() bool {
		for _, v := range s.views {
			if len(v.usable()) != 2 {
				return false
			}
		}
		return true
	})
}

// interrupt announces the end of the machine, lets the way deal with it, and takes it at the deadline. It returns when
// that was announced and when it was taken.
func (s *scene) interrupt(ctx context.Context, t lab.TB, way Way, o Options, running *sync.WaitGroup) (notice, end time.Time) {
	t.Helper()
	last := unheeded
	if way.Acts {
		last = o.Notice
	}
	notice = time.Now()
	deadline := notice.Add(last)
	s.doomed.IMDS.SetSpot("terminate", deadline)
	ctx, gone := context.WithCancel(ctx)
	defer gone()
	failed := make(chan error, 1)
	if way.handle != nil {
		running.Go(func() {
			if err := way.handle(ctx, s); err != nil {
				failed <- err
			}
		})
	}
	time.Sleep(time.Until(deadline))
	select {
	case err := <-failed:
		t.Fatalf("%s: %v", way.Name, err)
	default:
	}
	end = time.Now()
	gone()
	way.lose(t, s.doomed)
	if way.button {
		lab.Await(t, "the machine is off", s.doomed.Off)
	}
	return notice, end
}
