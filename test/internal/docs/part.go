package docs

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// A Part is what a program writes into a page, between two comments that the rendered page does not show:
//
//	<!-- requests lost: "make node WRITE=1" writes this -->
//
//	…
//
//	<!-- end of requests lost -->
type Part struct{ Name, Command string }

func (p Part) begins() string { return fmt.Sprintf("<!-- %s: %q writes this -->\n", p.Name, p.Command) }
func (p Part) ends() string   { return fmt.Sprintf("<!-- end of %s -->\n", p.Name) }

// Write puts the text into a page, in the place of the one that is there.
func (p Part) Write(file, text string) error {
	page, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("writing %s: %w", p.Name, err)
	}
	before, _, after, err := p.cut(string(page))
	if err != nil {
		return fmt.Errorf("writing %s into %q: %w", p.Name, file, err)
	}
	return os.WriteFile(file, []byte(before+p.begins()+"\n"+text+"\n"+p.ends()+after), 0o644)
}

func (p Part) cut(page string) (before, text, after string, err error) {
	before, rest, begins := strings.Cut(page, p.begins())
	text, after, ends := strings.Cut(rest, p.ends())
	if !begins || !ends {
		return "", "", "", errors.New("there is no place for it")
	}
	return before, text, after, nil
}
