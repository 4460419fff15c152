package traffic_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/test/internal/traffic"
)

func TestNewConnectionsGoToWhatIsReadyElseToWhatTerminatesAndServes(t *testing.T) {
	ready := traffic.Endpoint{Pod: "ready", Node: "a", Ready: true, Serving: true}
	leaving := traffic.Endpoint{Pod: "leaving", Node: "b", Serving: true, Terminating: true}
	unready := traffic.Endpoint{Pod: "unready", Node: "b"}
	for name, tt := range map[string]struct {
		all  []traffic.Endpoint
		node string
		want []string
	}{
		"the ready":                       {[]traffic.Endpoint{ready, leaving, unready}, "", []string{"ready"}},
		"none ready":                      {[]traffic.Endpoint{leaving, unready}, "", []string{"leaving"}},
		"none that serves":                {[]traffic.Endpoint{unready}, "", nil},
		"of a node, whatever others have": {[]traffic.Endpoint{ready, leaving, unready}, "b", []string{"leaving"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := traffic.NewView(time.Second)
				v.Learn(tt.all...)
				if early := v.Usable(tt.node); early != nil {
					t.Errorf("%q are known at once", early)
				}
				time.Sleep(time.Second)
				synctest.Wait()
				if got := v.Usable(tt.node); !slices.Equal(got, tt.want) {
					t.Errorf("new connections go to %q, want %q", got, tt.want)
				}
			})
		})
	}
}

func TestTheLoadBalancerSendsNothingNewToAnExcludedNodeAfterAWhileAndCutsWhatIsLeftLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lb := traffic.NewLoadBalancer(t.Context(), traffic.Balancer{Reacts: time.Second, Stops: 19 * time.Second, Deregistration: 24 * time.Second}, "goes", "stays")
		began := time.Now()
		lb.Exclude("goes")
		until := connect(t, lb, "goes")
		time.Sleep(19 * time.Second)
		connect(t, lb, "goes")
		time.Sleep(time.Second)
		synctest.Wait()
		for range 100 {
			if node, _ := lb.Choose(); node != "stays" {
				t.Fatalf("a connection goes to %q after the node is out", node)
			}
		}
		<-until.Done()
		if lived := time.Since(began); lived != 25*time.Second || !errors.Is(context.Cause(until), traffic.ErrDeregistered) {
			t.Errorf("a connection ends after %s, want 25s: %v", lived, context.Cause(until))
		}
	})
}

// connect opens connections until one goes to the node, and returns what that lives in.
func connect(t *testing.T, lb traffic.LoadBalancer, want string) context.Context {
	t.Helper()
	for range 1000 {
		if node, until := lb.Choose(); node == want {
			return until
		}
	}
	t.Fatalf("no connection goes to %q", want)
	return nil
}

func TestTheLoadBalancerLeavesOutWhatFailsTwoHealthChecksUnlessAllDo(t *testing.T) {
	lb := traffic.NewLoadBalancer(t.Context(), traffic.Balancer{}, "bad", "good")
	onlyGood := func(node string) bool { return node == "good" }
	lb.Check(onlyGood)
	connect(t, lb, "bad")
	lb.Check(onlyGood)
	for range 100 {
		if node, _ := lb.Choose(); node != "good" {
			t.Fatalf("a connection goes to %q, which is unhealthy", node)
		}
	}
	none := func(string) bool { return false }
	lb.Check(none)
	lb.Check(none)
	connect(t, lb, "bad")
	connect(t, lb, "good")
}

func TestRequestsKeepTheirPaceAndAreCountedWhenTheyHaveBecomeSomething(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Second-time.Millisecond)
		defer stop()
		began := time.Now()
		// Those of the fifth second are lost, and say so long after the last was sent.
		count := traffic.Send(ctx, 10, func(ctx context.Context, _ int) error {
			if since := time.Since(began); since < 4*time.Second || since >= 5*time.Second {
				return nil
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(20 * time.Second):
				return traffic.ErrLost
			}
		})
		if count.Sent != 100 || count.Lost != 10 || count.Reasons["connection refused"] != 10 {
			t.Errorf("counted %+v, want 10 of 100 lost", count)
		}
		if first, last := count.First.Sub(began), count.Last.Sub(began); first != 4*time.Second || last != 4900*time.Millisecond {
			t.Errorf("the first was sent after %s and the last after %s", first, last)
		}
	})
}

func result(way traffic.Way, lost ...int) traffic.Result {
	r := traffic.Result{Way: way}
	for i, service := range traffic.Services() {
		at := time.Unix(0, 0)
		r.Counts = append(r.Counts, traffic.Count{Service: service, Sent: 1000, Lost: lost[i], First: at, Last: at.Add(7 * time.Second)})
	}
	return r
}

func TestTheTableTakesThePlaceOfTheOneBefore(t *testing.T) {
	file := filepath.Join(t.TempDir(), "page.md")
	before := "above\n<!-- requests lost: \"make node WRITE=1\" writes this -->\nold\n<!-- end of requests lost -->\nbelow\n"
	if err := os.WriteFile(file, []byte(before), 0o600); err != nil {
		t.Fatal(err)
	}
	table := traffic.Table([]traffic.Result{result(traffic.Nobody, 5, 6, 7), result(traffic.Nth, 0, 0, 0)}, traffic.Full)
	if !strings.Contains(table, "\n| nobody | 5, over 7 s | 6, over 7 s | 7, over 7 s |\n| nth | 0 | 0 | 0 |\n") {
		t.Errorf("the table is\n%s", table)
	}
	for range 2 {
		if err := traffic.WriteTable(file, table); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := traffic.ReadTable(file); err != nil || got != table {
		t.Errorf("read\n%s%v, want\n%s", got, err, table)
	}
	page, err := os.ReadFile(file)
	if err != nil || !strings.HasPrefix(string(page), "above\n<!--") || !strings.HasSuffix(string(page), "-->\nbelow\n") || strings.Contains(string(page), "old") {
		t.Errorf("the page is\n%s%v", page, err)
	}
	if err := os.WriteFile(file, []byte("no place"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := traffic.WriteTable(file, table); err == nil {
		t.Error("the table is written into a page that has no place for it")
	}
}

// What README says is what a run has written: nobody has changed the ways, the Services or the load since without running
// it again, nor the numbers of nth by hand.
func TestTheTableInREADMEIsOneThatARunHasWritten(t *testing.T) {
	got, err := traffic.ReadTable("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	cells := regexp.MustCompile(`(?m)^\| (.+?) \| (\d.*?) \| (\d.*?) \| (\d.*?) \|$`).FindAllStringSubmatch(got, -1)
	if len(cells) != len(traffic.Ways()) {
		t.Fatalf("there are %d rows, want %d: run make node WRITE=1\n%s", len(cells), len(traffic.Ways()), got)
	}
	var results []traffic.Result
	for i, way := range traffic.Ways() {
		r := traffic.Result{Way: way}
		for j, service := range traffic.Services() {
			r.Counts = append(r.Counts, count(t, service, cells[i][2+j]))
		}
		results = append(results, r)
	}
	if want := traffic.Table(results, traffic.Full); got != want {
		t.Errorf("README has\n%s\nand a run with those numbers writes\n%s", got, want)
	}
	for _, c := range results[len(results)-1].Counts {
		if c.Lost != 0 {
			t.Errorf("README says that nth loses %d requests to %s", c.Lost, c.Service)
		}
	}
}

// count reads a cell of the table.
func count(t *testing.T, service, cell string) traffic.Count {
	t.Helper()
	lost, over, _ := strings.Cut(cell, ", over ")
	n, err := strconv.Atoi(lost)
	if err != nil {
		t.Fatalf("a cell says %q", cell)
	}
	c := traffic.Count{Service: service, Lost: n}
	if n > 0 {
		seconds, err := time.ParseDuration(strings.ReplaceAll(over, " ", ""))
		if err != nil {
			t.Fatalf("a cell says %q: %v", cell, err)
		}
		c.First = time.Unix(0, 0)
		c.Last = c.First.Add(seconds)
	}
	return c
}
