package demo_test

import (
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/demo"
	"github.com/nth-project/nth/test/internal/lab"
)

var start = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

func after(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }

// word is a message of nth's journal.
func word(at time.Time, id, pod, message string) daemon.Entry {
	return daemon.Entry{Time: at, Level: "info", Message: message, Fields: map[string]string{
		systemd.FieldMessageID: id, systemd.FieldPod: pod,
	}}
}

func heldBack(at time.Time, budget, pod string) daemon.Entry {
	return word(at, systemd.PodHeld, "work/"+pod, "disruption budget "+budget+" blocks the eviction of work/"+pod+"; retrying")
}

func TestTheTimelineTellsWhatTheWitnessesSawInTheOrderInWhichItHappened(t *testing.T) {
	w, story := demo.NewWitness(), demo.NewStory(start, 5)
	w.Cluster(lab.Moment{At: after(900), What: lab.PodTerminating, Pod: "web-2"})
	w.Cluster(lab.Moment{At: after(250), What: lab.PodTerminating, Pod: "web-1"})
	w.Cluster(lab.Moment{At: after(262), What: lab.PodGone, Pod: "web-1"})
	w.Journal(heldBack(after(260), "web", "web-2"))
	w.Journal(word(after(212), systemd.DrainStarted, "", "3 pods to evict"))
	w.Cluster(lab.Moment{At: after(211), What: lab.Cordoned})
	w.EC2(after(0), "terminate")
	w.Cluster(lab.Moment{At: after(255), What: lab.PodGone, Pod: "job"})
	story.Print(w, after(500))
	w.Cluster(lab.Moment{At: after(4900), What: lab.PodGone, Pod: "web-2"})
	story.Print(w, after(1000))
	story.Print(w, after(5000))

	want := strings.TrimPrefix(`
   +0.000 s EC2     terminate
   +0.211 s node    cordoned, 211 ms after the notice
   +0.212 s nth     3 pods to evict
   +0.250 s pod     web-1  evicted, gone 0.012 s later
   +0.255 s pod     job    removed, it had finished
   +0.260 s budget  web    holds web-2 back
   +0.900 s pod     web-2  evicted, budget web held it for 0.640 s
   +4.900 s pod     web-2  gone 4.000 s later
`, "\n")
	if got := story.Text(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestTheSummaryNamesEachBudgetWithWhatItHeld(t *testing.T) {
	w, story := demo.NewWitness(), demo.NewStory(start, 5)
	story.Print(w, after(1))
	if got := story.Budgets(); got != "held nothing back" {
		t.Errorf("before anything happened: %q", got)
	}
	for i, pod := range []string{"web-1", "web-2", "db-1"} {
		budget, _, _ := strings.Cut(pod, "-")
		w.Journal(heldBack(after(100), budget, pod))
		w.Journal(heldBack(after(150), budget, pod)) // asked again and refused again
		w.Cluster(lab.Moment{At: after(1100 + 500*i), What: lab.PodTerminating, Pod: pod})
	}
	w.Journal(heldBack(after(100), "idle", "never-released"))
	story.Print(w, after(5000))
	if got, want := story.Budgets(), "db held 1 pod for 2.000 s; web held 2 pods for up to 1.500 s"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestOfTheJournalTheTimelineTellsWhatTheClusterDoesNot(t *testing.T) {
	for _, c := range []struct {
		id, level, message, want string
	}{
		{systemd.DrainStarted, "warning", "draining the node", "nth     draining the node"},
		{systemd.Drained, "warning", "drained: 3 pods", "nth     drained: 3 pods"},
		{systemd.DrainIncomplete, "error", "left: web-1", "nth     left: web-1"},
		{systemd.PodDeleted, "warning", "deleted work/web-1", "nth     deleted work/web-1"},
		{systemd.PodHeld, "warning", "evicting work/web-1 was refused", "nth     evicting work/web-1 was refused"},
		{systemd.StateTrouble, "error", "the disk is full", "nth     the disk is full"},
		{systemd.Cordoned, "warning", "cordoned the node", ""},
		{systemd.PodEvicted, "info", "evicted work/web-1", ""},
		{systemd.PodGone, "info", "work/web-1 is gone", ""},
		{systemd.Started, "info", "watching", ""},
	} {
		w, story := demo.NewWitness(), demo.NewStory(start, 5)
		e := word(after(10), c.id, "", c.message)
		e.Level = c.level
		told := w.Journal(e)
		story.Print(w, after(20))
		want := c.want
		if want != "" {
			want = "   +0.010 s " + want + "\n"
		}
		if told != (want != "") || story.Text() != want {
			t.Errorf("%q: told %t, got %q, want %q", c.message, told, story.Text(), want)
		}
	}
}

func TestTheTimelineKnowsWhenAllPodsAreGone(t *testing.T) {
	w := demo.NewWitness()
	w.Cluster(lab.Moment{At: after(1), What: lab.PodGone, Pod: "a"})
	if w.AllGone("a", "b") {
		t.Error("b is still there")
	}
	demo.NewStory(start, 1).Print(w, after(2)) // what is printed is not forgotten
	w.Cluster(lab.Moment{At: after(3), What: lab.PodGone, Pod: "b"})
	if !w.AllGone("a", "b") {
		t.Error("both are gone")
	}
}
