package demo_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/nth-project/nth/test/internal/demo"
)

func TestALongTextGoesOnBelowItself(t *testing.T) {
	w, story := demo.NewWitness(), demo.NewStory(start, 5)
	w.EC2(after(0), strings.Repeat("word ", 40))
	story.Print(w, after(1))
	lines := strings.Split(strings.TrimSuffix(story.Text(), "\n"), "\n")
	if len(lines) != 3 {
		t.Fatalf("%d lines: %q", len(lines), lines)
	}
	for i, line := range lines {
		if utf8.RuneCountInString(line) > demo.Width {
			t.Errorf("line %d has more than %d columns: %q", i, demo.Width, line)
		}
		if strings.Index(line, "word") != strings.Index(lines[0], "word") {
			t.Errorf("line %d begins elsewhere than the first: %q", i, line)
		}
	}
}

func TestAFileGetsNoColours(t *testing.T) {
	w, story := demo.NewWitness(), demo.NewStory(start, 5)
	w.EC2(after(0), "terminate")
	w.Journal(heldBack(after(1), "web", "web-1"))
	story.Print(w, after(2))
	if strings.Contains(story.Text(), "\x1b") {
		t.Errorf("colours in %q", story.Text())
	}
}

func TestAPreparationIsOneLineUnlessSomebodySpeaksMeanwhile(t *testing.T) {
	got := demo.Page(func(step func(string), done, outside func(string), item func(string, string)) {
		step("node")
		done("is there")
		step("pods")
		outside("careful\nnow\n")
		item("nth", "ready")
	})
	want := "  node           is there\n  pods           \n  careful\n  now\n  nth            ready\n"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
