package bench_test

import (
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/nth-project/nth/test/internal/bench"
	"github.com/nth-project/nth/test/tools"
)

func TestTheTableShowsEachNumberBesideItsTarget(t *testing.T) {
	got := bench.Table(
		bench.Row("notice → cordon", 0.2, 0.35, "s", 3),
		bench.Row("memory", 30, 28, "MB", 1),
		bench.Row("    something to compare with", 12, 0, "%", 0),
	)
	want := `                                               measured         target       ratio
notice → cordon                                 0.200 s      ≤ 0.350 s      0.57
memory                                           30.0 MB      ≤ 28.0 MB     1.07  over
    something to compare with                      12 %
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestTheMedianIsTheMiddle(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		took          []time.Duration
		median, worst float64
	}{
		{nil, 0, 0},
		{[]time.Duration{200 * ms}, 0.2, 0.2},
		{[]time.Duration{900 * ms, 100 * ms, 200 * ms}, 0.2, 0.9},
		{[]time.Duration{400 * ms, 100 * ms, 900 * ms, 200 * ms}, 0.3, 0.9},
	} {
		median, worst := bench.MedianAndWorst(c.took...)
		if median != c.median || worst != c.worst {
			t.Errorf("%v: got median %v and worst %v, want %v and %v", c.took, median, worst, c.median, c.worst)
		}
	}
}

func TestMemoryIsReadFromTheKernelsText(t *testing.T) {
	const status = "Name:\tnth\nVmHWM:\t   36000 kB\nVmRSS:\t   28000 kB\nVmBad:\tmany\n"
	if got, err := bench.Field(status, "VmRSS"); err != nil || got != 28.672 {
		t.Errorf("got %v, %v, want 28.672 MB", got, err)
	}
	for _, name := range []string{"VmBad", "VmSwap"} {
		if got, err := bench.Field(status, name); err == nil {
			t.Errorf("%s: got %v, want an error", name, got)
		}
	}
	now, peak, own := bench.Memory(t, os.Getpid())
	if own <= 0 || now <= own || peak < now {
		t.Errorf("of this process: %v MB now, of it %v its own, %v at most", now, own, peak)
	}
}

func TestTheProcessorClockCountsWork(t *testing.T) {
	before := bench.Processor(t, os.Getpid())
	const work = 20 * time.Millisecond
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		if bench.Processor(t, os.Getpid())-before >= work {
			return
		}
	}
	t.Errorf("a minute of work counts less than %s", work)
}

// What README says is what a run has written: nobody has changed what is compared, or the release that it is compared with, since
// without running it again, nor a number of nth by hand into one that is worse than the other's.
func TestTheComparisonInREADMEIsOneThatARunHasWritten(t *testing.T) {
	got, err := bench.ReadComparison("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	var numbers []float64
	for _, cells := range regexp.MustCompile(`(?m)^\| [a-z].*? \| (\d.*?) \| (\d.*?) \|$`).FindAllStringSubmatch(got, -1) {
		for _, cell := range cells[1:] {
			for _, number := range regexp.MustCompile(`\d+(\.\d+)?`).FindAllString(cell, -1) {
				n, err := strconv.ParseFloat(number, 64)
				if err != nil {
					t.Fatal(err)
				}
				numbers = append(numbers, n)
			}
		}
	}
	processors := regexp.MustCompile(`with (\d+) processors`).FindStringSubmatch(got)
	if len(numbers) != 12 || processors == nil {
		t.Fatalf("there are %d numbers, want 12: run make compare WRITE=1\n%s", len(numbers), got)
	}
	figure := func(first int) bench.Figure { // Each row has nth's numbers first.
		at := func(row, column, width int) float64 { return numbers[row+first*width+column] }
		return bench.Figure{Cordon: at(0, 0, 2), Slowest: at(0, 1, 2), Drain: at(4, 0, 1), Idle: at(6, 0, 2), Peak: at(6, 1, 2), Size: at(10, 0, 1)}
	}
	release, err := tools.Version("handler")
	if err != nil {
		t.Fatal(err)
	}
	c := bench.Comparison{Release: release, Nth: figure(0), Handler: figure(1)}
	if c.Processors, err = strconv.Atoi(processors[1]); err != nil {
		t.Fatal(err)
	}
	if want := c.Table(); got != want {
		t.Errorf("README has\n%s\nand a run with those numbers writes\n%s", got, want)
	}
	if c.Nth.Cordon > c.Handler.Cordon || c.Nth.Drain > c.Handler.Drain || c.Nth.Idle > c.Handler.Idle || c.Nth.Peak > c.Handler.Peak {
		t.Errorf("README says that nth is worse: %+v, and the handler %+v", c.Nth, c.Handler)
	}
}
