// Package soak lets random things happen to nth, for as long as is wanted, and compares the node with a model each time
// that things have settled.
//
// A life is one machine with its node, its metadata service, a way to the API server that can break, and nth. Its rounds
// follow one another: an administrator or nth-queue may interfere (people_test.go); then, in quick succession, events are
// announced, withdrawn, canceled, completed and moved, both services fail for moments, pods are added, the rules are changed,
// nth is stopped, killed and started again, the machine is rebooted, and its kubelet comes later; and then there is peace
// until the node is as the model wants it (model_test.go). How it came to that is judged, too (judge_test.go).
// Violations are told with the seed, what has happened, the record and nth's journal; the next life goes on.
//
//	go test ./soak                                            some seconds
//	NTH_SOAK=30m go test ./soak -v -timeout 0                 long ("make soak")
//	NTH_SOAK_SEED=42 NTH_SOAK_LIFE=7 go test ./soak -v        one life of an earlier run
//
// A seed decides what happens. When it happens, in nth's eyes, is up to the machine, so that a violation may need more
// than one run to show again.
package soak_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
)

const (
	// short is how long new rounds begin unless NTH_SOAK says otherwise.
	short = 12 * time.Second
	// lanes is how many lives there are at a time.
	lanes = 4
	// roundsOfALife is how long a life is, but for the steady one, which lasts as long as the run.
	roundsOfALife = 30
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m, 2)) }

// anySeed is another one for each long run, and always the same for the short one, which is a test among tests.
func anySeed() uint64 {
	if _, long := os.LookupEnv("NTH_SOAK"); long {
		return rand.Uint64()
	}
	return 1
}

func TestWhateverHappensTheNodeLooksAsItMust(t *testing.T) {
	seed := number(t, "NTH_SOAK_SEED", anySeed())
	length := duration(t, "NTH_SOAK", short)
	t.Logf("%v with NTH_SOAK_SEED=%d", length, seed)
	lab.Shared(t) // is started once, not by each lane
	if _, err := daemon.Binary(); err != nil {
		t.Fatal(err)
	}
	s := &soak{t: t, seed: seed, begin: time.Now(), end: time.Now().Add(length)}
	if only, given := os.LookupEnv("NTH_SOAK_LIFE"); given {
		s.live(number(t, "NTH_SOAK_LIFE", 0))
		t.Logf("life %s: %v", only, &s.toll)
		return
	}
	done := make(chan struct{})
	var reporter, running sync.WaitGroup
	reporter.Go(func() { s.report(done) })
	for range lanes {
		running.Go(s.lane)
	}
	running.Wait()
	close(done)
	reporter.Wait()
}

// A soak is one run.
type soak struct {
	t          *testing.T
	seed       uint64
	begin, end time.Time
	lives      atomic.Uint64
	toll       toll
}

// lane lives one life after the other. The first life of the run is the steady one, in which nth is left to run.
func (s *soak) lane() {
	for {
		s.live(s.lives.Add(1) - 1)
		if s.over() {
			return
		}
	}
}

func (s *soak) over() bool { return time.Now().After(s.end) }

func (s *soak) live(number uint64) {
	ok := s.t.Run(fmt.Sprintf("life %d", number), func(t *testing.T) {
		l := newLife(t, s, number)
		for l.round = 1; !s.over() && (l.steady || l.round <= roundsOfALife); l.round++ {
			l.play(t)
			s.toll.add("rounds")
		}
		l.finish(t)
	})
	if !ok {
		s.toll.add("violations")
	}
}

// report tells every minute how things stand, and at the end.
func (s *soak) report(done <-chan struct{}) {
	minutes := time.NewTicker(time.Minute)
	defer minutes.Stop()
	for {
		select {
		case <-minutes.C:
			s.t.Logf("%v: %v", time.Since(s.begin).Round(time.Second), &s.toll)
		case <-done:
			s.t.Logf("NTH_SOAK_SEED=%d, %v: %v", s.seed, time.Since(s.begin).Round(time.Second), &s.toll)
			return
		}
	}
}

// number returns the number that a variable holds, or standard if it is not set.
func number(t *testing.T, variable string, standard uint64) uint64 {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return standard
	}
	value, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("reading %s: %v", variable, err)
	}
	return value
}

// duration returns the duration that a variable holds, or standard if it is not set.
func duration(t *testing.T, variable string, standard time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return standard
	}
	value, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("reading %s: %v", variable, err)
	}
	return value
}
