package fleet_test

import (
	"cmp"
	"context"
	"maps"
	"slices"
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
	// addresses are their private IP addresses, and remembered those that Look has said.
	addresses, remembered map[string]string
	// planned are the statuses of instances.
	planned map[string]ec2.Status
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

// Look implements fleet.EC2 with an answer of long ago: everything runs that is known, and has its first address.
func (k *knowledge) Look(ctx context.Context, id string) (ec2.Instance, bool, error) {
	i, known, err := k.LookAnew(ctx, id)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.remembered == nil {
		k.remembered = map[string]string{}
	}
	k.remembered[id] = cmp.Or(k.remembered[id], i.Address)
	i.State, i.Address = "running", k.remembered[id]
	return i, known, err
}

// LookAnew implements fleet.EC2.
func (k *knowledge) LookAnew(_ context.Context, id string) (ec2.Instance, bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked++
	state, known := k.states[id]
	return ec2.Instance{ID: id, State: state, Managed: k.managed[id], Clusters: k.clusters[id], Address: k.addresses[id]}, known, k.err
}

// InGroup implements fleet.EC2.
func (k *knowledge) InGroup(_ context.Context, group string) ([]string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.groups[group], k.err
}

// InReservation implements fleet.EC2.
func (k *knowledge) InReservation(context.Context, string) ([]string, error) {
	return nil, k.err
}

// AtAddress implements fleet.EC2.
func (k *knowledge) AtAddress(_ context.Context, address string) (found []ec2.Instance, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for id, at := range k.addresses {
		if at == address {
			found = append(found, ec2.Instance{ID: id, Address: at, State: k.states[id], Clusters: k.clusters[id]})
		}
	}
	return found, k.err
}

// Marks implements fleet.EC2.
func (k *knowledge) Marks(_ context.Context, ids []string) (groups, clusters []string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, id := range ids {
		clusters = append(clusters, k.clusters[id]...)
	}
	slices.Sort(clusters)
	return nil, slices.Compact(clusters), k.err
}

// Notable implements fleet.EC2.
func (k *knowledge) Notable(context.Context, bool) (map[string]ec2.Status, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.planned), k.err
}
