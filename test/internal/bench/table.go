package bench

import (
	"fmt"
	"strings"
)

// A row is one number beside its target.
type row struct {
	what     string
	measured float64
	// target is the most that is wanted; 0 where there is only something to compare with.
	target float64
	unit   string // as in "s" or "MB"
	digits int    // after the point
}

// ratio is measured to target: 1 is on target, less is better.
func (r row) ratio() string {
	if r.target == 0 {
		return ""
	}
	ratio := fmt.Sprintf("%.2f", r.measured/r.target)
	if r.measured > r.target {
		ratio += "  over"
	}
	return ratio
}

func (r row) number(n float64) string { return fmt.Sprintf("%.*f %-5s", r.digits, n, r.unit) }

// table prints rows, aligned; trailing blanks are cut.
func table(rows []row) string {
	const line = "%-46s %12s %14s  %s"
	var b strings.Builder
	write := func(args ...any) { fmt.Fprintln(&b, strings.TrimRight(fmt.Sprintf(line, args...), " ")) }
	write("", "measured     ", "target     ", "ratio")
	for _, r := range rows {
		target := ""
		if r.target != 0 {
			target = "≤ " + r.number(r.target)
		}
		write(r.what, r.number(r.measured), target, r.ratio())
	}
	return b.String()
}
