package mutate

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// verdict is what came of a package's mutants.
type verdict struct {
	dir       string
	mutants   []*mutant
	took      time.Duration // by the tests without a mutant
	accepted  entries
	unmet     []string // entries of the other list that spare nothing
	whole     bool     // all of the package's mutants were run
	threshold float64
}

// tell says how the package's tests did, and whether that will do.
func (v verdict) tell(out io.Writer) bool {
	killed, hung, unreached, known, equivalent := 0, 0, 0, 0, 0
	var refused []string
	for _, m := range v.mutants {
		e, accepted := v.accepted.of(m)
		switch {
		case !m.survived:
			killed++
			if m.hung {
				hung++
			}
			continue
		case len(m.tests) == 0:
			unreached++
		}
		fmt.Fprintf(out, "%s:%d: %s\n    %s\n", m.file, m.line, fate(m, accepted, e), m.key)
		switch {
		case !accepted:
			refused = append(refused, m.key)
		case e.equivalent():
			equivalent++
		default:
			known++
		}
	}
	score := 100.0
	if counted := len(v.mutants) - equivalent; counted > 0 {
		score = 100 * float64(killed) / float64(counted)
	}
	fmt.Fprintf(out, "%s: %d mutants: %d noticed (%d by hanging), %d survived (%d not reached; %d accepted, %d equivalent): %.1f %%; the tests take %s\n",
		v.dir, len(v.mutants), killed, hung, len(v.mutants)-killed, unreached, known, equivalent, score, v.took.Round(100*time.Millisecond))
	return v.judge(out, score, len(refused))
}

func fate(m *mutant, accepted bool, e entry) string {
	words := "no test notices"
	if len(m.tests) == 0 {
		words = "no test gets there"
	}
	if accepted {
		words += "; accepted: " + e.reason
	}
	return words
}

// judge says what is wrong with the package, and returns whether nothing is.
func (v verdict) judge(out io.Writer, score float64, refused int) bool {
	good := true
	wrong := func(format string, args ...any) {
		good = false
		fmt.Fprintf(out, "%s: "+format+"\n", append([]any{v.dir}, args...)...)
	}
	if refused > 0 {
		wrong("%d survivors are not accepted: write a test that notices them, or put them into the list, with the reason", refused)
	}
	if !v.whole {
		return good
	}
	if score < v.threshold {
		wrong("%.1f %% of the mutants are noticed, which is less than %g %%", score, v.threshold)
	}
	for _, e := range v.accepted {
		mutants, survivors := v.with(e.subject)
		switch {
		case !strings.HasPrefix(e.subject, v.dir+" | ") || survivors > 0:
		case mutants == 0:
			wrong("an accepted survivor is no longer there: %s", e.subject)
		default: // No fault: a mutant that chance kills would be one every other time.
			fmt.Fprintf(out, "%s: an accepted survivor was noticed this time: %s\n", v.dir, e.subject)
		}
	}
	for _, subject := range v.unmet {
		wrong("what is to be spared is not there: %s", subject)
	}
	return good
}

// with counts the mutants that have a key, and those of them that have survived.
func (v verdict) with(key string) (mutants, survivors int) {
	for _, m := range v.mutants {
		if m.key != key {
			continue
		}
		mutants++
		if m.survived {
			survivors++
		}
	}
	return mutants, survivors
}
