package recording_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/recording"
)

// picture is the one that README shows.
const picture = "../../../docs/rehearse.svg"

func TestPicture_ShowsWhatARehearsalSays(t *testing.T) {
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
