package fleet_test

import (
	"context"
	"sync"

	"github.com/nth-project/nth/pkg/ec2"
)

// knowledge is what EC2 knows of instances.
type knowledge struct {
	mu sync.Mutex
	// states are those of the instances that are known.
	states map[string]string
	// managed have the tag, clusters are those that instances are tagged to be of, and groups are the instances of groups.
	managed  map[string]bool
	clusters map[string][]string
	groups   map[string][]string
	// dns are their private DNS names.
	dns map[string]string
	// err is what EC2 answers instead, and asked how often it was.
	err   error
	asked int
}

// say changes what is known.
func (k *knowledge) say(how func(*knowledge)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	how(k)
}

// Look implements fleet.Instances with an answer of long ago: everything runs that is known.
func (k *knowledge) Look(ctx context.Context, id string) (ec2.Instance, bool, error) {
	i, known, err := k.LookAnew(ctx, id)
	i.State = "running"
	return i, known, err
}

// LookAnew implements fleet.Instances.
func (k *knowledge) LookAnew(_ context.Context, id string) (ec2.Instance, bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked++
	state, known := k.states[id]
	return ec2.Instance{ID: id, State: state, Managed: k.managed[id], Clusters: k.clusters[id], DNS: k.dns[id]}, known, k.err
}

// InGroup implements fleet.Instances.
func (k *knowledge) InGroup(_ context.Context, group string) ([]string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.groups[group], k.err
}

// InReservation implements fleet.Instances.
func (k *knowledge) InReservation(context.Context, string) ([]string, error) {
	return nil, k.err
}
