package agent_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/record"
)

// refusing is a Record that does not take what cannot be encoded, as pkg/record does not.
type refusing struct {
	*memory
	refused atomic.Int64
}

func (m *refusing) Put(written func(error), entries ...record.Entry) {
	for _, e := range entries {
		if e.Event.Deadline.Year() > 9999 && m.refused.Add(1) < 1000 {
			written(errors.New("year outside of range"))
			return
		}
	}
	m.memory.Put(written, entries...)
}

// The loop would put it again and again.
func TestADeadlineThatNoRecordCanHoldIsNone(t *testing.T) {
	t.Parallel()
	bubble(t, func(r *rig) {
		m := &refusing{memory: r.record}
		r.cfg.Record = m
		r.run()
		ev := r.spot("a", 0)
		ev.Deadline = time.Date(9999, 12, 31, 23, 59, 59, 0, time.FixedZone("", -3600))
		r.announce(ev)
		if e := r.entry("a"); m.refused.Load() > 0 || !e.Event.Deadline.IsZero() || e.Phase != record.Drained {
			t.Errorf("refused %d times, and then %+v", m.refused.Load(), e)
		}
	})
}
