package lifecycle

import "context"

// Checkup is what can be found out about lifecycle hooks while nothing is announced.
type Checkup struct {
	// Err is why that could not be found out: a missing permission, mostly.
	Err error
	// Found says which hooks there are, and which of them are ours; empty if the instance is in no group. Ours tells
	// whether any is.
	Found string
	Ours  bool
}

// Check looks for the group and its hooks, and changes nothing. Whether heartbeats and completions are allowed cannot be
// found out that way.
func Check(ctx context.Context, opts Options, named []string) Checkup {
	service, err := newService(ctx, opts, nil)
	if err != nil {
		return Checkup{Err: err}
	}
	group, _, err := service.place(ctx)
	if err != nil || group == "" {
		return Checkup{Err: err}
	}
	hooks, err := service.hooks(ctx, group)
	if err != nil {
		return Checkup{Err: err}
	}
	ours, why := choose(group, hooks, named)
	return Checkup{Found: why, Ours: len(ours) > 0}
}
