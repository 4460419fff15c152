package mutate_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/test/tools/mutate"
)

func TestAMutantThatATestNoticesIsNoSurvivor(t *testing.T) {
	t.Parallel()
	p := newProject(t, "func Older(a, b int) bool { return a < b }", `
func TestOlder(t *testing.T) {
	if !Older(1, 2) || Older(2, 2) || Older(2, 1) { t.Error("no") }
}`)
	good, said := p.run(mutate.Config{})
	if !good || !strings.Contains(said, "core: 2 mutants: 2 noticed (0 by hanging), 0 survived") {
		t.Errorf("it is good: %v; want that both the operator and the result are noticed:\n%s", good, said)
	}
}

func TestASurvivorIsNamedWithItsPlaceItsFunctionAndItsLine(t *testing.T) {
	t.Parallel()
	p := newProject(t, "func Older(a, b int) bool { return a < b }", `
func TestOlder(t *testing.T) {
	if !Older(1, 2) || Older(2, 1) { t.Error("no") }
}`)
	good, said := p.run(mutate.Config{})
	want := "core/core.go:3: no test notices\n    " + survivor + "\n"
	if good || !strings.Contains(said, want) || !strings.Contains(said, "1 survivors are not accepted") {
		t.Errorf("it is good: %v; want %q:\n%s", good, want, said)
	}
}

// survivor is the key of the only survivor among the mutants of Older, where nobody compares what is equal.
const survivor = "core | Older | < becomes <=: a < b | func Older(a, b int) bool { return a < b }"

func TestAnAcceptedSurvivorCountsUnlessItIsEquivalent(t *testing.T) {
	t.Parallel()
	p := newProject(t, "func Older(a, b int) bool { return a < b }", `
func TestOlder(t *testing.T) {
	if !Older(1, 2) || Older(2, 1) { t.Error("no") }
}`)
	for reason, want := range map[string]bool{"nobody is as old": false, "equivalent: nobody is as old": true} {
		list := p.write("survivors.txt", survivor+"\n\t"+reason+"\n")
		good, said := p.run(mutate.Config{Survivors: list, Threshold: 90})
		if good != want || strings.Contains(said, "not accepted") {
			t.Errorf("with %q, and one of two mutants noticed, it is good: %v\n%s", reason, good, said)
		}
	}
	list := p.write("survivors.txt", survivor+"\n\tnobody is as old\n")
	if good, said := p.run(mutate.Config{Survivors: list, Threshold: 50}); !good {
		t.Errorf("half of the mutants do, and are noticed, but:\n%s", said)
	}
}

func TestAnEntryOfWhatIsNoLongerThereIsAFault(t *testing.T) {
	t.Parallel()
	p := newProject(t, "func Older(a, b int) bool { return a < b }", `
func TestOlder(t *testing.T) {
	if !Older(1, 2) || Older(2, 2) || Older(2, 1) { t.Error("no") }
}`)
	gone := "core | Younger | remove it | it"
	good, said := p.run(mutate.Config{
		Survivors: p.write("survivors.txt", gone+"\n\tit was so\n"+survivor+"\n\tthere was no test\nother | Older | x | x\n\tof another package\n"),
		Spared:    p.write("spared.txt", "func core.Younger\n\tit was so\n"),
	})
	if good || !strings.Contains(said, "no longer there: "+gone) || !strings.Contains(said, "is not there: func core.Younger") {
		t.Errorf("it is good: %v\n%s", good, said)
	}
	if !strings.Contains(said, "was noticed this time: "+survivor) || strings.Contains(said, "other |") {
		t.Errorf("want a word about the mutant that is noticed by now, and none about another package:\n%s", said)
	}
}

func TestAnEntryWithoutAReasonIsAnError(t *testing.T) {
	t.Parallel()
	p := newProject(t, "func Older(a, b int) bool { return a < b }", "")
	_, err := mutate.Run(t.Context(), mutate.Config{Top: p.top, Survivors: p.write("survivors.txt", "# words\n"+survivor+"\n"), Out: io.Discard})
	if err == nil || !strings.Contains(err.Error(), "no reason is given for: "+survivor) {
		t.Errorf("got %v", err)
	}
}

func TestWhatNoTestReachesSurvivesWithoutARun(t *testing.T) {
	t.Parallel()
	p := newProject(t, "func Same(a int) int { return a }\nfunc Next(a int) int { return a + 1 }", "func TestSame(t *testing.T) { Same(1) }")
	good, said := p.run(mutate.Config{})
	if good || strings.Count(said, "no test gets there") != 2 || !strings.Contains(said, "running 0 mutants") {
		t.Errorf("it is good: %v; want both mutants of Next not reached:\n%s", good, said)
	}
}

func TestAMutantThatHangsIsNoticed(t *testing.T) {
	t.Parallel()
	p := newProject(t, `
func Sum(n int) int {
	sum := 0
	for n != 0 {
		sum += n
		n--
	}
	return sum
}`, `
func TestSum(t *testing.T) {
	if Sum(3) != 6 { t.Error("no") }
}`)
	good, said := p.run(mutate.Config{Only: "core.go:8", Patience: 3 * time.Second})
	if !good || !strings.Contains(said, "1 mutants: 1 noticed (1 by hanging)") {
		t.Errorf("it is good: %v\n%s", good, said)
	}
}

func TestTestsThatFailWithoutAMutantAreAnError(t *testing.T) {
	t.Parallel()
	p := newProject(t, "func Next(a int) int { return a + 1 }", `
func TestNext(t *testing.T) { t.Error("this is why") }`)
	_, err := mutate.Run(t.Context(), mutate.Config{Top: p.top, Packages: []string{"core"}, Out: io.Discard})
	if err == nil || !strings.Contains(err.Error(), "without a mutant, which must pass") || !strings.Contains(err.Error(), "this is why") {
		t.Errorf("got %v", err)
	}
}

func TestATestThatFailsAloneIsAnError(t *testing.T) {
	t.Parallel()
	p := newProject(t, "func Next(a int) int { return a + 1 }", `
var ready bool

func TestFirst(t *testing.T) { ready = true }

func TestSecond(t *testing.T) {
	if !ready { t.Error("this is why") }
}`)
	_, err := mutate.Run(t.Context(), mutate.Config{Top: p.top, Packages: []string{"core"}, Out: io.Discard})
	if err == nil || !strings.Contains(err.Error(), "TestSecond without a mutant, which must pass") || !strings.Contains(err.Error(), "this is why") {
		t.Errorf("got %v", err)
	}
}

func TestOnlyTheTestsThatReachAMutantRunWithItTheQuickestFirst(t *testing.T) {
	t.Parallel()
	p := newProject(t, "func Next(a int) int { return a + 1 }\nfunc Last(a int) int { return a - 1 }", `
func ran(t *testing.T) {
	file, err := os.OpenFile("../ran", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil { t.Fatal(err) }
	file.WriteString(t.Name() + " ")
	file.Close()
}

func TestSlow(t *testing.T) {
	ran(t)
	time.Sleep(2 * time.Second)
	if Next(1) != 2 { t.Error("no") }
}

func TestQuick(t *testing.T) {
	ran(t)
	if Next(2) != 3 { t.Error("no") }
}

func TestOther(t *testing.T) {
	ran(t)
	if Last(2) != 1 { t.Error("no") }
}`)
	good, said := p.run(mutate.Config{})
	if !good || !strings.Contains(said, "core: 4 mutants: 4 noticed") {
		t.Fatalf("it is good: %v\n%s", good, said)
	}
	text, err := os.ReadFile(filepath.Join(p.top, "ran"))
	if err != nil {
		t.Fatal(err)
	}
	// Each runs with all and alone, and Quick and Other once more for each of the two mutants that they reach.
	for test, want := range map[string]int{"TestSlow": 2, "TestQuick": 4, "TestOther": 4} {
		if got := strings.Count(string(text), test); got != want {
			t.Errorf("%s ran %d times, want %d", test, got, want)
		}
	}
}

func TestAMutantSurvivesOnlyAllTestsThatReachIt(t *testing.T) {
	t.Parallel()
	tests := ""
	for i := range 9 {
		tests += fmt.Sprintf("func TestQuick%d(t *testing.T) { Next(%d) }\n", i, i)
	}
	p := newProject(t, "func Next(a int) int { return a + 1 }", tests+`
func TestSlow(t *testing.T) {
	time.Sleep(time.Second)
	if Next(1) != 2 { t.Error("no") }
}`)
	if good, said := p.run(mutate.Config{}); !good || !strings.Contains(said, "core: 2 mutants: 2 noticed") {
		t.Errorf("it is good: %v\n%s", good, said)
	}
}

func TestWhatNoTestReachesAloneIsForAllOfThemToNotice(t *testing.T) {
	t.Parallel()
	p := newProject(t, "func Next(a int) int { return a + 1 }", `
var ready bool

func TestFirst(t *testing.T) { ready = true }

func TestSecond(t *testing.T) {
	if ready && Next(1) != 2 { t.Error("no") }
}`)
	if good, said := p.run(mutate.Config{}); !good || !strings.Contains(said, "core: 2 mutants: 2 noticed") {
		t.Errorf("it is good: %v\n%s", good, said)
	}
}

func TestCodeThatIsToBeSparedIsNotChanged(t *testing.T) {
	t.Parallel()
	p := newProject(t, `
import "log/slog"

func Next(a int) int {
	slog.Info("next", "a", a+1)
	return a
}

func Words(a int) int { return a + 1 }`, "")
	if keys := p.keys(mutate.Config{}); len(keys) != 5 {
		t.Fatalf("want the call and both sums: %q", keys)
	}
	for subject, want := range map[string]int{"func core.Words": 3, "call log/slog.*": 2, "file core/core.go": 0} {
		if keys := p.keys(mutate.Config{Spared: p.write("spared.txt", subject+"\n\tas a test\n")}); len(keys) != want {
			t.Errorf("%s leaves %q, want %d", subject, keys, want)
		}
	}
}

func TestTheTreeIsNotTouched(t *testing.T) {
	t.Parallel()
	p := newProject(t, "func Next(a int) int { return a + 1 }", "func TestNext(t *testing.T) { Next(1) }")
	p.run(mutate.Config{})
	files, err := filepath.Glob(filepath.Join(p.top, "core", "*"))
	if err != nil || len(files) != 2 {
		t.Errorf("there is now %q, %v", files, err)
	}
	if text, err := os.ReadFile(filepath.Join(p.top, "core", "core.go")); err != nil || strings.Contains(string(text), "mutant") {
		t.Errorf("the file is now %v\n%s", err, text)
	}
}

func TestOneLineOfTheReportIsEnoughToRunOneMutant(t *testing.T) {
	t.Parallel()
	p := newProject(t, "func Next(a int) int { return a - 2 }\nfunc Last(a int) int { return a - 1 }", "")
	keys := p.keys(mutate.Config{Only: "core.go:4"})
	if len(keys) != 2 || slices.ContainsFunc(keys, func(key string) bool { return !strings.HasPrefix(key, "core | Last | ") }) {
		t.Errorf("got %q", keys)
	}
}
