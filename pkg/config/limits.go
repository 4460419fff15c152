package config

import (
	"fmt"
	"strings"
)

// Limits of a file. The decoder's memory grows with the square of the depth: 20,000 levels took 12 GB.
const (
	maxSize  = 1 << 20 // bytes
	maxDepth = 500     // brackets that are open, in texts and comments as well, or dots on one line
)

// checkLimits returns an error for a text that is so large or so deep that the TOML decoder would take too much memory.
func checkLimits(text string) error {
	if len(text) > maxSize {
		return fmt.Errorf("the file must have at most %d MiB", maxSize>>20)
	}
	depth, number := 0, 0 // of open brackets, and of the line
	for line := range strings.Lines(text) {
		number++
		depth += strings.Count(line, "[") + strings.Count(line, "{")
		if max(depth, strings.Count(line, ".")) > maxDepth {
			return fmt.Errorf("line %d: lists, tables or keys are nested more than %d deep", number, maxDepth)
		}
		depth = max(0, depth-strings.Count(line, "]")-strings.Count(line, "}"))
	}
	return nil
}
