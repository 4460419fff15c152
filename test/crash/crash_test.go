// Package crash kills nth at random moments, breaks what it depends on for moments, and judges what comes of it.
//
// A round is one life of a spot notice: it is announced, the node is drained, the node rests, and the notice is
// withdrawn. Within each of these stages nth may be killed (SIGKILL) and started again. The moments are chosen by
// progress: after so many things have happened, which are lines that nth logs and changes of the node that the API
// server tells of, and then up to 50 ms later. The metadata service, the API server and the way to it fail meanwhile. Rounds follow
// one another on a few machines at once, which remember all that happened to them before. On the first, nth is never ended, and what
// it uses must not grow.
//
//	go test ./crash -run Kill                                          a few rounds
//	NTH_NIGHTLY=1 go test ./crash -run Kill -v -timeout 30m            many
//	NTH_SOAK=30m go test ./crash -run Kill -v -timeout 0               as many as there is time for ("make soak")
//	NTH_CRASH_SEED=42 go test ./crash -run Kill -v                     the plan of an earlier run
package crash_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nth-project/nth/test/internal/lab"
)

const (
	// fewRounds is how many rounds a run has, and manyRounds that of "make nightly" and "make crash".
	fewRounds, manyRounds = 8, 100
	// lanes is how many machines there are.
	lanes = 6
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m, 2)) }

func TestKill_LosesAndRepeatsNothing(t *testing.T) {
	rounds := uint64(fewRounds)
	if os.Getenv("NTH_NIGHTLY") != "" {
		rounds = manyRounds
	}
	seed := rand.Uint64()
	if text := os.Getenv("NTH_CRASH_SEED"); text != "" {
		if _, err := fmt.Sscan(text, &seed); err != nil {
			t.Fatalf("reading NTH_CRASH_SEED: %v", err)
		}
	}
	var end time.Time
	if length := os.Getenv("NTH_SOAK"); length != "" {
		span, err := time.ParseDuration(length)
		if err != nil {
			t.Fatalf("reading NTH_SOAK: %v", err)
		}
		rounds, end = math.MaxInt32, time.Now().Add(span)
	}
	t.Logf("at most %d rounds with NTH_CRASH_SEED=%d", rounds, seed)
	var played, violations, kills atomic.Int64
	t.Cleanup(func() {
		t.Logf("%d rounds with %d kills and %d violations", played.Load(), kills.Load(), violations.Load())
	})
	lab.Shared(t) // is started once, not by each lane
	for number := range uint64(lanes) {
		t.Run(fmt.Sprintf("machine %d", number+1), func(t *testing.T) {
			t.Parallel()
			choices := rand.New(rand.NewPCG(seed, number))
			var l *lane
			for round := number; round < rounds && (end.IsZero() || time.Now().Before(end)); round += lanes {
				plan := newPlan(choices)
				if l == nil {
					l = newLane(t, &kills)
					l.steady = number == 0
				}
				played.Add(1)
				if !t.Run(fmt.Sprintf("round %d", round+1), func(t *testing.T) { l.play(t, int(round+1), plan) }) {
					violations.Add(1)
					return
				}
			}
		})
	}
}
