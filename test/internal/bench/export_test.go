package bench

import (
	"time"

	"github.com/nth-project/nth/test/internal/lab"
)

// Row is a line of the table.
func Row(what string, measured, target float64, unit string, digits int) row {
	return row{what, measured, target, unit, digits}
}

func Table(rows ...row) string { return table(rows) }

// MedianAndWorst are in seconds.
func MedianAndWorst(took ...time.Duration) (median, worst float64) {
	return sample(took).median(), sample(took).worst()
}

func Field(status, name string) (float64, error) { return field(status, name) }

func Processor(t lab.TB, pid int) time.Duration { return processor(t, pid) }

// Memory is in megabytes.
func Memory(t lab.TB, pid int) (now, peak, own float64) {
	r := memory(t, pid)
	return r.now, r.peak, r.own
}
