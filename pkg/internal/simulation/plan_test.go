package simulation_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// happening is one thing that happens. What its fields mean is said where it is carried out, in happen_test.go.
type happening struct {
	at   time.Duration
	what string
	name string
	kind string
	span time.Duration
	n    int
}

// plan is a history that may be lived through: happenings in the order of their times.
type plan []happening

// String is a line that parse understands.
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

// String is what parse understands.
func (p plan) String() string {
	var text strings.Builder
	for _, h := range p {
		text.WriteString(h.String() + "\n")
	}
	return text.String()
}

// sorted is the plan in the order of its times. What happens at one time stays in its order.
func (p plan) sorted() plan {
	p = slices.Clone(p)
	slices.SortStableFunc(p, func(a, b happening) int { return int(a.at - b.at) })
	return p
}

// started is the plan with the start of nth, which comes after all that is so from the beginning.
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
