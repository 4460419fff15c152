package mutate_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/nth-project/nth/test/tools/mutate"
)

// kinds is code with everything that can be changed, each function tested so that every change is noticed: which means
// that a mutant does what its name says, and that without one the code does what it did.
const kinds = `
import (
	"errors"
	"time"
)

const limit, pause = 3, time.Minute

type Flag bool // is no bool to a comparison

type Box struct {
	Full  bool
	Count int
	Flag  Flag
}

func Loose(b *Box) bool { return b != nil && b.Full }

func Either(a, b bool) bool { return a || (b) }

func Not(b *Box) bool { return !b.Full }

func Flagged(b *Box) Flag { return b.Flag }

func Between(a float64) bool { return 1 <= a && a < limit }

func Order(a, b string) bool { return a >= b }

func Above(a, b time.Duration) bool { return a > b }

func Sums(a, b int) int { return a*b - a/b + a%b }

func Join(a, b string) string { return a + b }

func Later(d time.Duration) time.Duration { return pause + 2*d }

func Zero() time.Duration { return 0 }

func Fill(b *Box) {
	b.Count += 5
	b.Count -= 2
	b.Count++
	b.Full = true
	_ = b
}

func Check(a int) (int, error) {
	if a == 7 {
		return 0, errors.New("seven")
	}
	return a, nil
}

func Evens(all []int) (n int) {
	for _, a := range all {
		if a > 100 {
			break
		}
		if a%2 != 0 {
			continue
		}
		n++
	}
	return n
}

func Name(a int) string {
	name := "many"
	switch a {
	case 1:
		name = "one"
	case 2:
		name = "two"
		name += "!"
	}
	switch {
	case a < 0:
		return "less"
	}
	return name
}

func Deep() func() error {
	return func() error { return errors.New("deep") }
}

func Sure(b *Box) string {
	if b.Full {
		b.Count = 1
		return "full"
	} else {
		b.Count = 2
		return "empty"
	}
}
`

const kindsTests = `
func TestAll(t *testing.T) {
	for i, ok := range []bool{
		!Loose(nil), !Loose(&Box{}), Loose(&Box{Full: true}),
		Either(true, false), Either(false, true), Either(true, true), !Either(false, false),
		Not(&Box{}), !Not(&Box{Full: true}), bool(Flagged(&Box{Flag: true})),
		Between(1), Between(2), !Between(3), !Between(4), !Between(0),
		Order("b", "a"), Order("a", "a"), !Order("a", "b"),
		Above(2, 1), !Above(1, 1), !Above(1, 2),
		Sums(7, 2) == 12, Join("a", "b") == "ab", Later(3) == time.Minute+6, Zero() == 0,
		Evens([]int{2, 3, 4, 100, 101, 2}) == 3, Name(1) == "one", Name(2) == "two!", Name(3) == "many", Name(-1) == "less", Name(0) == "many",
		Deep()() != nil,
	} {
		if !ok { t.Error(i) }
	}
}

func TestFill(t *testing.T) {
	b := Box{Count: 1}
	if Fill(&b); b.Count != 5 || !b.Full { t.Error(b) }
	if said := Sure(&b); said != "full" || b.Count != 1 { t.Error(b) }
	if said := Sure(&Box{}); said != "empty" { t.Error(said) }
	if b := (&Box{}); Sure(b) != "empty" || b.Count != 2 { t.Error(b) }
}

func TestCheck(t *testing.T) {
	if a, err := Check(7); a != 0 || err == nil { t.Error(a, err) }
	if a, err := Check(8); a != 8 || err != nil { t.Error(a, err) }
	var all sync.WaitGroup
	synctest.Test(t, func(t *testing.T) {
		for range 9 {
			all.Go(func() { time.Sleep(Later(1)); Fill(new(Box)) })
		}
		all.Wait()
	})
}
`

func TestEveryKindOfMutantChangesWhatTheCodeDoes(t *testing.T) {
	t.Parallel()
	p := newProject(t, kinds, kindsTests)
	_, said := p.run(mutate.Config{Only: "core.go"})
	var survivors []string
	for line := range strings.Lines(said) {
		if strings.HasPrefix(line, "    core | ") {
			survivors = append(survivors, line)
		}
	}
	if len(survivors) > 0 || !strings.Contains(said, "mutants: ") {
		t.Errorf("these change nothing: %q\n%s", survivors, said)
	}
}

func TestWhatIsChangedIsWhatCanBeWrong(t *testing.T) {
	t.Parallel()
	got := map[string][]string{}
	for _, key := range newProject(t, kinds, "").keys(mutate.Config{}) {
		fields := strings.SplitN(key, " | ", 4)
		got[fields[1]] = append(got[fields[1]], fields[2])
	}
	for function, want := range map[string][]string{
		"Loose":   {"&& becomes ||: b != nil && b.Full", "negate b != nil", "negate b.Full"},
		"Either":  {"|| becomes &&: a || (b)", "negate a", "negate b"},
		"Not":     {"negate b.Full"},
		"Flagged": nil,
		"Between": {"&& becomes ||: 1 <= a && a < limit", "negate 1 <= a", "negate a < limit", "<= becomes <: 1 <= a", "< becomes <=: a < limit"},
		"Sums":    {"+ becomes -: a*b - a/b + a%b", "- becomes +: a*b - a/b", "* becomes /: a*b", "/ becomes *: a/b", "% becomes *: a%b"},
		"Join":    nil,
		"Later":   {"+ becomes -: pause + 2*d", "longer: pause", "* becomes /: 2*d", "longer: 2"},
		"Zero":    nil, // twice nothing is nothing
		"Fill": {"+= becomes -=: b.Count += 5", "remove b.Count += 5", "one more than 5", "-= becomes +=: b.Count -= 2",
			"remove b.Count -= 2", "one more than 2", "remove b.Count++", "remove b.Full = true"},
		"Check": {"negate a == 7", "remove the body of if a == 7", "one more than 7", `no error: errors.New("seven")`, "one more than 0"},
		"Deep":  {`no error: errors.New("deep")`},
		// To leave out a block that is the function's end does not compile.
		"Sure": {"negate b.Full", "remove b.Count = 1", "one more than 1", "remove b.Count = 2", "one more than 2"},
	} {
		if !slices.Equal(got[function], want) {
			t.Errorf("%s: got %q, want %q", function, got[function], want)
		}
	}
}
