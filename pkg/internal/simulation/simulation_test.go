package simulation_test

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	"github.com/go-logr/logr"
)

// verbose adds nth's log to the story.
var verbose bool

func TestMain(m *testing.M) {
	flag.Parse()
	klog.SetLogger(logr.Discard())
	// The second handler of client-go keeps a millisecond between any two errors, also of different bubbles.
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1]
	debug.SetGCPercent(800) // Most of the heap is garbage.
	os.Exit(m.Run())
}

// outcome is the result of a history.
type outcome struct {
	broken   []violation
	verdicts map[invariant]int // how often each invariant was judged
	tale     string            // the story, if something was violated
}

// run lets a plan happen in a bubble of its own. Goroutines that hang, and panics, are violations. seed is for what is random in the world.
func run(t *testing.T, seed uint64, p plan) (o outcome) {
	t.Helper()
	dir, err := os.MkdirTemp(scratch(), "nth-simulation-") //nolint:usetesting // It is in memory, and removed after each history.
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	var w *world
	defer func() {
		if why := recover(); why != nil {
			o = outcome{broken: []violation{{name: nothingHangs, text: fmt.Sprint(why)}}}
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		w = newWorld(t, dir, seed)
		w.live(p)
		w.judged(nothingHangs)
		o = outcome{broken: w.broken, verdicts: w.verdicts}
		if len(w.broken) > 0 || verbose {
			o.tale = w.tale()
		}
	})
	return o
}

// scratch is the directory for records: in memory if the system has one.
func scratch() string {
	if _, err := os.Stat("/dev/shm"); err == nil {
		return "/dev/shm"
	}
	return os.TempDir()
}

// TestHistories runs a fixed number of histories, of the same seeds each time.
func TestHistories(t *testing.T) {
	count := 400
	if testing.Short() || raced {
		count = 50
	}
	campaign(t, 1, uint64(count), 0)
}

// TestKept runs the histories of testdata, most of which have found a mistake once, or those that "make replay" has made of traces.
func TestKept(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(cmp.Or(os.Getenv("HISTORIES"), "testdata"), "*.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			p, err := parse(string(text))
			if err != nil {
				t.Fatal(err)
			}
			for try := range uint64(3) {
				o := run(t, try, p)
				for _, v := range o.broken {
					t.Errorf("%s after %s: %s\n%s", v.name, v.at, v.text, o.tale)
				}
			}
		})
	}
}

// TestSimulate is "make simulate".
func TestSimulate(t *testing.T) {
	span, limited := os.LookupEnv("SIMULATE")
	if !limited {
		t.Skip("this is for make simulate")
	}
	d, err := time.ParseDuration(span)
	if err != nil {
		t.Fatal(err)
	}
	first := uint64(time.Now().Unix())
	if text := os.Getenv("FIRST"); text != "" {
		first, _ = strconv.ParseUint(text, 10, 64)
	}
	campaign(t, first, 1<<62, d)
}

// TestReproduce is "make reproduce".
func TestReproduce(t *testing.T) {
	text, asked := os.LookupEnv("SEED")
	if !asked {
		t.Skip("this is for make reproduce")
	}
	var p plan
	seed, err := strconv.ParseUint(text, 10, 64)
	if err != nil { // It is the name of a file.
		content, err := os.ReadFile(text)
		if err != nil {
			t.Fatal(err)
		}
		if p, err = parse(string(content)); err != nil {
			t.Fatal(err)
		}
	} else {
		p = generate(seed)
	}
	t.Logf("the plan:\n%s", p)
	verbose = true
	for try := range uint64(5) {
		o := run(t, seed+try*1000000, p)
		if len(o.broken) == 0 {
			if try == 4 {
				t.Logf("it holds; the last story:\n%s", o.tale)
			}
			continue
		}
		t.Errorf("%s after %s: %s\n%s", o.broken[0].name, o.broken[0].at, o.broken[0].text, o.tale)
		if os.Getenv("SHRINK") != "0" {
			verbose = false
			small := shrink(t, seed, p, o.broken[0].name)
			verbose = true
			for try := range uint64(8) {
				if o = run(t, seed+try, small); len(o.broken) > 0 {
					break
				}
			}
			t.Logf("the shortest that still fails:\n%s\n%s", small, o.tale)
		}
		return
	}
}

// campaign runs histories of successive seeds on all cores, until their number or the time is over. A limit of 0 is none.
func campaign(t *testing.T, first, count uint64, limit time.Duration) {
	t.Helper()
	began := time.Now()
	var next atomic.Uint64
	all := newTally()
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for {
				i := next.Add(1) - 1
				if i >= count || limit > 0 && time.Since(began) > limit {
					return
				}
				seed := first + i
				o := run(t, seed, generate(seed))
				if violations := all.add(o); violations == 0 || violations > 3 { // Three of a sort say enough.
					continue
				}
				v := o.broken[0]
				t.Errorf("SEED=%d: %s, after %s: %s", seed, v.name, v.at, v.text)
				fmt.Printf("SEED=%d: %s, after %s: %s\n", seed, v.name, v.at, v.text)
			}
		})
	}
	ended := make(chan struct{})
	go func() { workers.Wait(); close(ended) }()
	for {
		select {
		case <-ended:
			if limit > 0 || testing.Verbose() {
				all.print(os.Stdout)
			}
			return
		case <-time.After(5 * time.Second):
			if limit > 0 {
				all.progress(began)
			}
		}
	}
}

// progress prints how far a campaign has come.
func (t *tally) progress(began time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fmt.Printf("%s: %d histories, %.0f per processor-hour; violations: %s\n",
		time.Since(began).Round(time.Second), t.histories, float64(t.histories)/cpu().Hours(), t)
}

// cpu is the processor time that this process has used.
func cpu() time.Duration {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) != nil {
		return time.Nanosecond
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// shrink returns a shorter plan that still violates an invariant. It tries for a minute.
func shrink(t *testing.T, seed uint64, p plan, name invariant) plan {
	t.Helper()
	end := time.Now().Add(time.Minute)
	fails := func(p plan) bool {
		for try := range uint64(3) {
			for _, v := range run(t, seed+try*1000, p).broken {
				if v.name == name {
					return true
				}
			}
		}
		return false
	}
	for size := (len(p) + 1) / 2; size >= 1 && time.Now().Before(end); {
		smaller := false
		for from := 0; from+size <= len(p) && time.Now().Before(end); {
			without := append(append(plan{}, p[:from]...), p[from+size:]...)
			if fails(without) {
				p, smaller = without, true
				continue
			}
			from += size
		}
		if size == 1 && !smaller {
			break
		}
		if !smaller || size > len(p) {
			size = max(size/2, 1)
		}
	}
	return p
}
