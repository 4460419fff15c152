package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/nth-project/nth/pkg/imds/imdstest"
)

// show tells what a simulator serves and has seen.
func show(ctx context.Context, args []string, out io.Writer) error {
	s := newSteering("show", showUsage)
	raw := s.Bool("json", false, "")
	if _, err := s.parse(args); err != nil {
		return err
	}
	return s.tell(ctx, out, func(ctx context.Context, c imdstest.Client) (string, error) {
		state, err := c.State(ctx)
		if err != nil {
			return "", err
		}
		if *raw {
			text, err := json.MarshalIndent(state, "", "  ")
			return string(text), err
		}
		return render(state), nil
	})
}

// render is a State for people.
func render(state imdstest.State) string {
	var b strings.Builder
	b.WriteString("announced:")
	if len(state.Announced) == 0 {
		b.WriteString(" nothing")
	}
	for _, path := range slices.Sorted(maps.Keys(state.Announced)) {
		fmt.Fprintf(&b, "\n  %s\n    %s", path, strings.ReplaceAll(state.Announced[path], "\n", "\n    "))
	}
	renderList(&b, "waiting", state.Waiting)
	renderList(&b, "faults", state.Faults)
	r := state.Requests
	fmt.Fprintf(&b, "\ntokens: %d valid, %d asked for", state.ValidTokens, r.Tokens)
	fmt.Fprintf(&b, "\nrequests: %d, at most %d at once", r.Total, r.MostInFlight)
	for _, status := range slices.Sorted(maps.Keys(r.ByStatus)) {
		fmt.Fprintf(&b, "\n  %6d answered %d", r.ByStatus[status], status)
	}
	for _, path := range slices.Sorted(maps.Keys(r.ByPath)) {
		fmt.Fprintf(&b, "\n  %6d %s", r.ByPath[path], path)
	}
	return b.String()
}

func renderList(b *strings.Builder, title string, lines []string) {
	fmt.Fprintf(b, "\n%s:", title)
	if len(lines) == 0 {
		b.WriteString(" none")
	}
	for _, line := range lines {
		b.WriteString("\n  " + line)
	}
}
