package simulation_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// happening is one step of a plan. What its fields mean depends on what happens: see happenings.
type happening struct {
	at   time.Duration
	what string
	name string
	kind string
	span time.Duration
	n    int
}

// plan is a history before it happens: happenings, sorted by time.
type plan []happening

// String is a line of a plan, as parse reads it.
func (h happening) String() string {
	text := fmt.Sprintf("%s %s", h.at, h.what)
	if h.name != "" {
		text += " name=" + h.name
	}
	if h.kind != "" {
		text += " kind=" + h.kind
	}
	if h.span != 0 {
		text += " for=" + h.span.String()
	}
	if h.n != 0 {
		text += " n=" + strconv.Itoa(h.n)
	}
	return text
}

// String is a plan as parse reads it.
func (p plan) String() string {
	var text strings.Builder
	for _, h := range p {
		text.WriteString(h.String() + "\n")
	}
	return text.String()
}

// sorted returns the plan sorted by time. Happenings of one time keep their sequence.
func (p plan) sorted() plan {
	p = slices.Clone(p)
	slices.SortStableFunc(p, func(a, b happening) int { return int(a.at - b.at) })
	return p
}

// started returns the plan with the start of nth, after all happenings of the time 0.
func (p plan) started() plan {
	at := 0
	for at < len(p) && p[at].at == 0 {
		at++
	}
	return slices.Insert(slices.Clone(p), at, happening{what: "start"})
}

// parse reads a plan: a happening in each line, and comments behind #.
func parse(text string) (plan, error) {
	var p plan
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		h, err := parseHappening(words)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", strings.TrimSpace(line), err)
		}
		p = append(p, h)
	}
	return p.sorted(), nil
}

// parseHappening reads one line, which is split into words: the time, what happens, and key=value for each other field.
func parseHappening(words []string) (h happening, err error) {
	if len(words) < 2 {
		return h, fmt.Errorf("a happening has a time and a name")
	}
	if h.at, err = time.ParseDuration(words[0]); err != nil {
		return h, err
	}
	h.what = words[1]
	for _, word := range words[2:] {
		key, value, _ := strings.Cut(word, "=")
		switch key {
		case "name":
			h.name = value
		case "kind":
			h.kind = value
		case "for":
			h.span, err = time.ParseDuration(value)
		case "n":
			h.n, err = strconv.Atoi(value)
		default:
			err = fmt.Errorf("%q is not understood", key)
		}
		if err != nil {
			return h, err
		}
	}
	return h, nil
}
