package traffic

import (
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/nth-project/nth/test/internal/lab"
)

// An endpoint is a pod of a Service, as its EndpointSlices have it. What is unknown of it is as the API says that it is to be read.
type endpoint struct {
	pod, node string
	// ready takes new connections; leaving is one that terminates and still serves.
	ready, leaving bool
}

func read(e discoveryv1.Endpoint) (found endpoint) {
	if e.TargetRef != nil {
		found.pod = e.TargetRef.Name
	}
	if e.NodeName != nil {
		found.node = *e.NodeName
	}
	known := func(condition *bool, otherwise bool) bool {
		return condition == nil && otherwise || condition != nil && *condition
	}
	found.ready = known(e.Conditions.Ready, true)
	found.leaving = known(e.Conditions.Serving, found.ready) && known(e.Conditions.Terminating, false)
	return found
}

// usable are the endpoints to which kube-proxy sends new connections: those that are ready or, where none is, those that
// terminate and still serve.
func usable(all []endpoint) []endpoint {
	ready := slices.DeleteFunc(slices.Clone(all), func(e endpoint) bool { return !e.ready })
	if len(ready) > 0 {
		return ready
	}
	return slices.DeleteFunc(slices.Clone(all), func(e endpoint) bool { return !e.leaving })
}

// late is by how much the clients' view of the endpoints is: kube-proxy's time between two writes of its rules.
const late = time.Second

// A view is what is known of a Service's endpoints by all who send to it. It is as late as kube-proxy is.
type view struct {
	mu     sync.Mutex
	states []state
}

// A state is the endpoints that there were from a moment on.
type state struct {
	from      time.Time
	endpoints []endpoint
}

// learn takes the endpoints of this moment.
func (v *view) learn(endpoints []endpoint) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.states = append(v.states, state{time.Now(), endpoints})
}

// usable are those of the endpoints known now that new connections go to.
func (v *view) usable() []endpoint {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, s := range slices.Backward(v.states) {
		if time.Since(s.from) >= late {
			return usable(s.endpoints)
		}
	}
	return nil
}

// pick chooses one by chance, as kube-proxy does.
func pick(among []endpoint) (endpoint, bool) {
	if len(among) == 0 {
		return endpoint{}, false
	}
	return among[rand.IntN(len(among))], true
}

// follow watches the EndpointSlices of a Service, and lets the view learn them.
func follow(t lab.TB, client kubernetes.Interface, namespace, service string, v *view) {
	t.Helper()
	source := cache.NewFilteredListWatchFromClient(client.DiscoveryV1().RESTClient(), "endpointslices", namespace,
		func(o *metav1.ListOptions) { o.LabelSelector = discoveryv1.LabelServiceName + "=" + service })
	known := map[string][]discoveryv1.Endpoint{} // by the name of each; the handler is called by one goroutine
	learn := func(object any, there bool) {
		slice, ok := object.(*discoveryv1.EndpointSlice)
		if !ok {
			return // it has gone while nobody watched; those that came in its place are reported
		}
		if delete(known, slice.Name); there {
			known[slice.Name] = slice.Endpoints
		}
		now := map[string]endpoint{}
		for _, endpoints := range known {
			for _, e := range endpoints {
				if read := read(e); read.pod != "" {
					now[read.pod] = read
				}
			}
		}
		v.learn(slices.Collect(maps.Values(now)))
	}
	lab.Follow(t, source, &discoveryv1.EndpointSlice{}, cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { learn(object, true) },
		UpdateFunc: func(_, object any) { learn(object, true) },
		DeleteFunc: func(object any) { learn(object, false) },
	})
}
