package asg_test

import (
	"context"
	"errors"
	"testing"

	"github.com/nth-project/nth/pkg/asg"
	"github.com/nth-project/nth/pkg/event"
)

// pulsing is a source that can tell whether it still looks, and silent one that cannot.
type pulsing struct{ stuck error }

func (p pulsing) Run(context.Context, event.Sink) error { return nil }
func (p pulsing) Stuck() error                          { return p.stuck }

type silent struct{}

func (silent) Run(context.Context, event.Sink) error { return nil }

func TestAKeeperIsStuckWhereItsSourceIs(t *testing.T) {
	t.Parallel()
	stuck := errors.New("nobody has looked for a minute")
	for name, tt := range map[string]struct {
		source asg.Source
		want   error
	}{
		"a source that looks":       {pulsing{}, nil},
		"a source that is stuck":    {pulsing{stuck}, stuck},
		"a source that cannot tell": {silent{}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := asg.New(tt.source, asg.Options{}, asg.Settings{})
			if got := k.Stuck(); !errors.Is(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}
