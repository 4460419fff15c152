package traffic

import (
	"fmt"
	"strings"
)

// special is what is special about each Service.
var special = map[string]string{
	Whole:   "both pods on the machine; a budget wants one",
	Guarded: "one of two pods on the machine; a budget grants no eviction",
}

// Table is what came of all ways, in Markdown: the requests to each Service that were lost, and over how long a time.
func Table(results []Result, o Options) string {
	var text strings.Builder
	text.WriteString("| who deals with the notice |")
	for _, service := range Services() {
		fmt.Fprintf(&text, " %s |", special[service])
	}
	text.WriteString("\n|---|" + strings.Repeat("--:|", len(Services())) + "\n")
	for _, r := range results {
		fmt.Fprintf(&text, "| %s |", r.Way.Name)
		for _, service := range Services() {
			fmt.Fprintf(&text, " %s |", cell(r.Count(service)))
		}
		text.WriteByte('\n')
	}
	fmt.Fprintf(&text, "\nEach Service got %d requests a second, each over a new connection and without retries. They began with the notice, or\n"+
		"%.0f s before the machine's end where nothing acts on the notice, and ended %.0f s after it.\n",
		rate, unheeded.Seconds(), o.After.Seconds())
	return text.String()
}

func cell(c Count) string {
	if c.Lost == 0 {
		return "0"
	}
	return fmt.Sprintf("%d, over %.0f s", c.Lost, c.Last.Sub(c.First).Seconds())
}

// String is what became of a way, for a log: the requests, with the first and the last lost one in seconds after the notice.
func (r Result) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s; the end came after %.1f s\n", r.Way.Name, r.End.Sub(r.Notice).Seconds())
	for _, c := range r.Counts {
		fmt.Fprintf(&text, "%s: %d sent, %d lost, from %.1f s to %.1f s: %v\n", c.Service, c.Sent, c.Lost,
			c.First.Sub(r.Notice).Seconds(), c.Last.Sub(r.Notice).Seconds(), c.Why)
	}
	return text.String()
}
