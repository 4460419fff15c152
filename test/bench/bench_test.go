package bench_test

import (
	"os"
	"testing"
	"time"

	"github.com/nth-project/nth/test/bench"
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
