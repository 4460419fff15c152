package recording

import (
	"encoding/xml"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Read returns the lines of a picture that Draw has made, but for the command itself and empty ones.
func Read(picture []byte) ([]string, error) {
	var svg struct {
		Lines []string `xml:"svg>g>text"`
	}
	if err := xml.Unmarshal(picture, &svg); err != nil {
		return nil, fmt.Errorf("reading a recording: %w", err)
	}
	lines := slices.DeleteFunc(svg.Lines, func(line string) bool { return strings.TrimSpace(line) == "" })
	if len(lines) == 0 || !strings.HasPrefix(lines[0], "$ ") {
		return nil, fmt.Errorf("reading a recording: it does not begin with a command: %q", lines)
	}
	return lines[1:], nil
}

var (
	date = regexp.MustCompile(`\d+ [A-Z][a-z]{2} \d{4}`)
	// number is one with its unit, where that follows at once: what took 900ms may take 1.1s another time.
	number = regexp.MustCompile(`[\d.]*\d(µs|ms|s)?`)
	// place is where the settings are from, which differs from machine to machine.
	place = regexp.MustCompile(`(settings in effect here: ).*`)
)

// Essence returns what is the same in each recording of a command: its lines, each once, without numbers, moments and the order in
// which things come that are done at once.
func Essence(lines []string) []string {
	var all []string
	for _, line := range lines {
		line = date.ReplaceAllString(line, "#")
		line = number.ReplaceAllString(line, "#")
		line = place.ReplaceAllString(line, "${1}…")
		if line = strings.Join(strings.Fields(line), " "); line != "" {
			all = append(all, line)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
