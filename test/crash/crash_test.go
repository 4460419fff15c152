// Package crash kills nth at random moments and judges what the next one makes of it.
//
// A round is one life of a spot notice: it is announced, the node is drained, the node rests, and the notice is
// withdrawn. Within each of these stages nth may be killed (SIGKILL) and started again. The moments are chosen by
// progress: after so many things have happened, which are lines that nth logs and changes of the node that the API
// server tells of, and then up to 50 ms later. Rounds follow one another on a few machines at once, which remember all
// that happened to them before.
//
//	go test ./crash -run Kill                                          a few rounds
//	NTH_CRASH_ROUNDS=100 go test ./crash -run Kill -v -timeout 30m     many
//	NTH_CRASH_SEED=42 go test ./crash -run Kill -v                     the plan of an earlier run
package crash_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/nth-project/nth/pkg/state"
	"github.com/nth-project/nth/test/internal/lab"
)

const (
	// fewRounds is how many rounds a run has unless NTH_CRASH_ROUNDS says otherwise.
	fewRounds = 8
	// lanes is how many machines there are.
	lanes = 6
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m, 2)) }

func TestAKillAtAnyMomentLosesAndRepeatsNothing(t *testing.T) {
	rounds := fromEnvironment(t, "NTH_CRASH_ROUNDS", fewRounds)
	seed := fromEnvironment(t, "NTH_CRASH_SEED", rand.Uint64())
	t.Logf("%d rounds with NTH_CRASH_SEED=%d", rounds, seed)
	kills := &toll{}
	t.Cleanup(func() { t.Log(kills) })
	lab.Shared(t) // is started once, not by each lane
	for number := range uint64(lanes) {
		t.Run(fmt.Sprintf("machine %d", number+1), func(t *testing.T) {
			t.Parallel()
			choices := rand.New(rand.NewPCG(seed, number))
			var l *lane
			for round := number; round < rounds; round += lanes {
				plan := newPlan(choices)
				if l == nil {
					l = newLane(t, kills)
				}
				ok := t.Run(fmt.Sprintf("round %d", round+1), func(t *testing.T) { l.play(t, int(round+1), plan) })
				if !ok {
					return
				}
			}
		})
	}
}

// fromEnvironment returns the number that a variable holds, or standard if it is not set.
func fromEnvironment(t *testing.T, variable string, standard uint64) uint64 {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return standard
	}
	number, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("reading %s: %v", variable, err)
	}
	return number
}

// toll counts kills by what was on record when they came.
type toll struct {
	mu    sync.Mutex
	kills map[state.Phase]int
}

func (k *toll) count(phase state.Phase) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.kills == nil {
		k.kills = map[state.Phase]int{}
	}
	k.kills[phase]++
}

// String tells how many kills there were.
func (k *toll) String() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	sum, parts := 0, []string{}
	for _, phase := range slices.Sorted(maps.Keys(k.kills)) {
		sum += k.kills[phase]
		name := string(phase)
		if name == "" {
			name = "nothing"
		}
		parts = append(parts, fmt.Sprintf("%d when it was %s", k.kills[phase], name))
	}
	return fmt.Sprintf("%d kills; by what was on record of the notice: %s", sum, strings.Join(parts, ", "))
}
