package fleet_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/ec2"
)

// knowledge is what EC2 knows of instances.
type knowledge struct {
	mu sync.Mutex
	// states are those of the instances that are known, and launched is when they were last started.
	states   map[string]string
	launched map[string]time.Time
	// managed have the tag, and clusters are those that instances are tagged to be of.
	managed  map[string]bool
	clusters map[string][]string
	// addresses are their private IP addresses.
	addresses map[string]string
	// planned are the statuses of instances.
	planned map[string]ec2.Status
	err     error // what EC2 answers instead
	// stays is why instances cannot be stopped, and asked are the requests that change instances.
	stays   map[string]string
	refused bool                                       // whether IAM refuses those requests
	silent  bool                                       // whether EC2 does not answer when they are only tried
	change  func(request ec2.Request, id string) error // carries such a request out, if set
	asked   []string
	broken  error // why EC2 cannot start instances
}

// Change implements fleet.EC2.
func (k *knowledge) Change(_ context.Context, request ec2.Request, id string, try bool) error {
	k.mu.Lock()
	refused, silent, change := k.refused, k.silent, k.change
	if !try {
		k.asked = append(k.asked, strings.TrimPrefix(string(request), "ec2:"))
	}
	k.mu.Unlock()
	switch {
	case refused:
		return fmt.Errorf("%w: %s", ec2.ErrRefused, request)
	case silent && try:
		return fmt.Errorf("%w: %s", ec2.ErrUnanswered, request)
	case try || change == nil:
		return nil
	}
	return change(request, id)
}

// requests are the requests that have changed instances so far.
func (k *knowledge) requests() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.asked)
}

// say changes what is known.
func (k *knowledge) say(how func(*knowledge)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	how(k)
}

// starts has an instance run from now on.
func (k *knowledge) starts(id string) {
	k.say(func(k *knowledge) { k.states[id], k.launched = "running", map[string]time.Time{id: time.Now()} })
}

// Look implements fleet.EC2.
func (k *knowledge) Look(ctx context.Context, id string) (ec2.Instance, bool, error) {
	return k.LookNow(ctx, id)
}

// LookNow implements fleet.EC2.
func (k *knowledge) LookNow(_ context.Context, id string) (ec2.Instance, bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	i, known := k.find(id)
	return i, known, k.err
}

// find returns what is known of an instance now. mu is held.
func (k *knowledge) find(id string) (ec2.Instance, bool) {
	state, known := k.states[id]
	return ec2.Instance{
		ID: id, State: state, Launched: k.launched[id], Managed: k.managed[id], Clusters: k.clusters[id], Address: k.addresses[id], Stays: k.stays[id],
	}, known
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

// Notable implements fleet.EC2.
func (k *knowledge) Notable(context.Context, bool) (map[string]ec2.Status, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.planned), k.err
}
