package recording_test

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/recording"
)

// picture is the one that README shows.
const picture = "../../../docs/rehearse.svg"

func TestThePictureInREADMEShowsWhatARehearsalSays(t *testing.T) {
	readme, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(readme), "](docs/rehearse.svg)") {
		t.Error("README does not show docs/rehearse.svg")
	}
	drawn, err := os.ReadFile(picture)
	if err != nil {
		t.Fatal(err)
	}
	shown, err := recording.Read(drawn)
	if err != nil {
		t.Fatal(err)
	}
	binary, err := daemon.Binary()
	if err != nil {
		t.Fatal(err)
	}
	printed, err := recording.Record(t.Context(), binary, "rehearse")
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, line := range printed {
		said = append(said, line.Text)
	}
	if old, now := recording.Essence(shown), recording.Essence(said); !slices.Equal(old, now) {
		t.Errorf("docs/rehearse.svg shows, but for numbers,\n%s\nand nth rehearse says\n%s\nrun: make recording", strings.Join(old, "\n"), strings.Join(now, "\n"))
	}
	if last := shown[len(shown)-1]; !strings.Contains(last, "before the deadline") {
		t.Errorf("the picture ends with %q", last)
	}
}

func TestTheEssenceOfARecordingIsWhatHostsAndMomentsDoNotChange(t *testing.T) {
	here := []string{
		"settings in effect here: the defaults", "  0.0 s   120.2 s    cordoned the node after 3ms", "",
		"  0.0 s   120.2 s    evicted default/web-1", "  0.0 s   120.2 s    evicted default/cache-0", "at 15:20:00 UTC on 23 Nov 2026",
	}
	elsewhere := []string{
		"settings in effect here: /etc/nth/nth.toml", " 0.1 s   99.8 s    cordoned the node after 1.2s",
		" 0.0 s   120.2 s    evicted default/cache-0", " 0.2 s    99.7 s    evicted default/web-2", "at 9:00:01 UTC on 1 Jan 2027",
	}
	if a, b := recording.Essence(here), recording.Essence(elsewhere); !slices.Equal(a, b) || len(a) != 5 {
		t.Errorf("the same is taken for something else:\n%q\n%q", a, b)
	}
	for _, other := range [][]string{elsewhere[:4], append(slices.Clone(elsewhere), "  0.3 s   99.6 s  ! more"), append(slices.Clone(elsewhere[1:]), "settings elsewhere")} {
		if slices.Equal(recording.Essence(here), recording.Essence(other)) {
			t.Errorf("something else is taken for the same: %q", other)
		}
	}
}

// long is more than fits on the terminal.
func long() []recording.Line {
	lines := []recording.Line{{Text: `a <b> & "c"`}, {At: time.Second, Text: "  0.1 s  119.9 s  ! held"}}
	for i := range 40 {
		lines = append(lines, recording.Line{At: time.Duration(2+i) * time.Second, Text: fmt.Sprintf("line %d", i)})
	}
	return append(lines, recording.Line{At: time.Minute, Text: "The node is drained"})
}

func TestAPictureHoldsItsLinesAsText(t *testing.T) {
	got, err := recording.Read(recording.Draw("bin/nth rehearse", long()))
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, line := range long() {
		want = append(want, line.Text)
	}
	if !slices.Equal(got, want) {
		t.Errorf("read\n%q, want\n%q", got, want)
	}
	if _, err := recording.Read([]byte("<svg/>")); err == nil {
		t.Error("a picture without a command is read")
	}
}

// What does not play it, a printer say, shows the end: nothing may be hidden or left outside but what has scrolled away.
func TestAPictureThatIsNotPlayedShowsTheEnd(t *testing.T) {
	drawn := string(recording.Draw("x", long()))
	style, _, _ := strings.Cut(drawn, "</style>")
	resting, _, _ := strings.Cut(style, "@media (prefers-reduced-motion")
	moved := regexp.MustCompile(`#lines\{transform:translateY\((-?\d+)px\)\}`).FindStringSubmatch(resting)
	if moved == nil || strings.Contains(resting, "opacity") {
		t.Fatalf("at rest the style is\n%s", resting)
	}
	up, _ := strconv.ParseFloat(moved[1], 64) // The pattern has a number.
	height := attribute(t, drawn, `<svg y="[\d.]+" width="[\d.]+" height="([\d.]+)"`)
	ys := regexp.MustCompile(`<text class="\w+" x="16" y="([\d.]+)" textLength`).FindAllStringSubmatch(drawn, -1)
	last, _ := strconv.ParseFloat(ys[len(ys)-1][1], 64)
	if at := last + up; at > height || at < height-40 {
		t.Errorf("the last line is at %.0f of %.0f", at, height)
	}
}

func attribute(t *testing.T, text, pattern string) float64 {
	t.Helper()
	found := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("there is no %s in\n%s", pattern, text)
	}
	n, err := strconv.ParseFloat(found[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestAPictureIsXMLAndNeedsNothingFromElsewhere(t *testing.T) {
	drawn := recording.Draw(`a "b"`, long())
	decoder := xml.NewDecoder(strings.NewReader(string(drawn)))
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if start, ok := token.(xml.StartElement); ok && !slices.Contains([]string{"svg", "title", "style", "rect", "text", "g"}, start.Name.Local) {
			t.Errorf("there is an element %s, which not everybody shows", start.Name.Local)
		}
	}
	if strings.Contains(string(drawn), "url(") || strings.Contains(string(drawn), "@import") {
		t.Error("the style needs another file")
	}
}

// As the Web Content Accessibility Guidelines count it: 4.5 to 1 is enough for text of this size.
func TestEveryLineCanBeReadOnLightAndOnDark(t *testing.T) {
	drawn := string(recording.Draw("x", long()))
	schemes := regexp.MustCompile(`\.ground\{fill:(#\w{6})[^\n]*`).FindAllStringSubmatch(drawn, -1)
	if len(schemes) != 2 {
		t.Fatalf("there are %d schemes", len(schemes))
	}
	for _, scheme := range schemes {
		ground := luminance(t, scheme[1])
		classes := regexp.MustCompile(`\.(plain|strong|faint|caution|good)\{fill:(#\w{6})`).FindAllStringSubmatch(scheme[0], -1)
		if len(classes) != 5 {
			t.Fatalf("on %s there are %d classes", scheme[1], len(classes))
		}
		for _, class := range classes {
			text := luminance(t, class[2])
			if contrast := (max(text, ground) + 0.05) / (min(text, ground) + 0.05); contrast < 4.5 {
				t.Errorf("%s on %s has a contrast of %.1f", class[1], scheme[1], contrast)
			}
		}
	}
}

func luminance(t *testing.T, colour string) float64 {
	t.Helper()
	n, err := strconv.ParseUint(colour[1:], 16, 32)
	if err != nil {
		t.Fatal(err)
	}
	linear := func(c uint64) float64 {
		v := float64(c&0xff) / 255
		if v <= 0.04045 {
			return v / 12.92
		}
		return math.Pow((v+0.055)/1.055, 2.4)
	}
	return 0.2126*linear(n>>16) + 0.7152*linear(n>>8) + 0.0722*linear(n)
}
