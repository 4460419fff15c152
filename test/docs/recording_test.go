package docs_test

import (
	"encoding/xml"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// A rehearsal is in README.md as a picture of the terminal in which it was typed. "make recording", which sets NTH_RECORDING, draws it again.
func TestPicture_ShowsWhatARehearsalSays(t *testing.T) {
	picture := filepath.Join(top, "docs", "rehearse.svg")
	said, err := exec.CommandContext(t.Context(), filepath.Join(ours(t), "nth"), "rehearse").Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := append([]string{"$ bin/nth rehearse"}, strings.Split(strings.TrimSpace(string(said)), "\n")...)
	if os.Getenv("NTH_RECORDING") != "" {
		if err := os.WriteFile(picture, draw(lines), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	drawn, err := os.ReadFile(picture)
	if err != nil {
		t.Fatal(err)
	}
	var shown struct {
		Lines []string `xml:"text"`
	}
	if err := xml.Unmarshal(drawn, &shown); err != nil {
		t.Fatal(err)
	}
	if old, now := essence(shown.Lines), essence(lines); !slices.Equal(old, now) {
		t.Errorf("docs/rehearse.svg shows, but for numbers,\n%s\nand nth rehearse says\n%s\nrun: make recording", strings.Join(old, "\n"), strings.Join(now, "\n"))
	}
}

var (
	date = regexp.MustCompile(`\d+ [A-Z][a-z]{2} \d{4}`)
	// number is one with its unit, where that follows at once: what took 900ms may take 1.1s another time.
	number = regexp.MustCompile(`[\d.]*\d(µs|ms|s)?`)
	// place is where the settings are from, which differs from machine to machine.
	place = regexp.MustCompile(`(settings in effect here: ).*`)
)

// essence returns what is the same in each rehearsal: its lines, each once, without numbers, moments and the order in which things come
// that are done at once.
func essence(lines []string) []string {
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

// The picture's measures, in its own units; browsers scale it.
const (
	charWidth, lineHeight = 7.2, 17.0
	border                = 16.0
)

// frame is the picture with gaps for its size and the lines. Its colours are those of the reader's scheme.
const frame = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]d %[2]d" role="img" aria-label="bin/nth rehearse, as it prints it">
<style>
text{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre}
.ground{fill:#ffffff;stroke:#d0d7de}.plain{fill:#1f2328}.faint{fill:#57606a}.caution{fill:#8a4600}.good{fill:#116329;font-weight:bold}
@media (prefers-color-scheme:dark){
.ground{fill:#0d1117;stroke:#30363d}.plain{fill:#d1d7e0}.faint{fill:#9198a1}.caution{fill:#e3b341}.good{fill:#56d364}
}
</style>
<rect class="ground" width="%[1]d" height="%[2]d" rx="8"/>
%[3]s</svg>
`

// draw returns a picture of the lines. The length of each is given, so that columns stay columns in any font.
func draw(lines []string) []byte {
	var texts strings.Builder
	columns := 0
	for i, line := range lines {
		if line == "" {
			continue
		}
		width := utf8.RuneCountInString(line)
		columns = max(columns, width)
		fmt.Fprintf(&texts, `<text class="%s" x="%.0f" y="%.0f" textLength="%.1f" xml:space="preserve">`,
			class(line), border, border+lineHeight*(float64(i)+0.75), charWidth*float64(width))
		_ = xml.EscapeText(&texts, []byte(line)) // A builder takes everything.
		texts.WriteString("</text>\n")
	}
	return fmt.Appendf(nil, frame, int(2*border+charWidth*float64(columns)), int(2*border+lineHeight*float64(len(lines))), texts.String())
}

// class says how a line looks. Nothing is said by its looks alone.
func class(line string) string {
	switch {
	case strings.Contains(line, "s  ! "):
		return "caution"
	case strings.Contains(line, "    drained the node: "):
		return "good"
	case strings.HasPrefix(strings.TrimSpace(line), "time "):
		return "faint"
	}
	return "plain"
}
