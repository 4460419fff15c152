package soak_test

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// usage is what a process of nth that is never restarted uses, each time that things have settled.
type usage struct{ descriptors, threads, kilobytes []int }

func (u *usage) measure(t *testing.T, pid int) {
	t.Helper()
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatalf("counting nth's file descriptors: %v", err)
	}
	status, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatalf("reading nth's status: %v", err)
	}
	defer status.Close()
	u.descriptors = append(u.descriptors, len(open))
	for lines := bufio.NewScanner(status); lines.Scan(); {
		name, text, _ := strings.Cut(lines.Text(), ":")
		into := map[string]*[]int{"Threads": &u.threads, "VmRSS": &u.kilobytes}[name]
		if into == nil {
			continue
		}
		var value int
		if _, err := fmt.Sscan(text, &value); err != nil {
			t.Fatalf("reading nth's status from %q: %v", lines.Text(), err)
		}
		*into = append(*into, value)
	}
}

const (
	// fewest is how many measurements are enough to compare their beginning with their end.
	fewest = 30
	// slack is how much may come and go between two looks: a connection to the metadata service, and its thread.
	slack = 5
)

// judge compares the end with the beginning. The least of some measurements counts: what is there for a moment is no
// growth.
func (u *usage) judge(t *testing.T) {
	t.Helper()
	count := len(u.descriptors)
	if count < fewest {
		t.Logf("after %d measurements of nth nothing can be said about what it uses", count)
		return
	}
	some := count / 5
	for _, of := range []struct {
		name   string
		values []int
		judged bool
	}{{"file descriptors", u.descriptors, true}, {"threads", u.threads, true}, {"KiB of resident memory", u.kilobytes, false}} {
		first, last := slices.Min(of.values[:some]), slices.Min(of.values[count-some:])
		t.Logf("%s of nth, left to run: %d in the beginning, %d at the end, at most %d", of.name, first, last, slices.Max(of.values))
		if of.judged && last > first+slack {
			t.Errorf("nth has %d %s at the end, %d in the beginning", last, of.name, first)
		}
	}
}
