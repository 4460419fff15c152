// Package docs reads the documentation as operators do who type its commands: every command in it, with what it prints.
//
// A command is a line of a code block that begins with a prompt, or, in a block without prompts, with the name of a
// program. A comment above the block tells what it takes to run it:
//
//	<!-- needs: aws -->      an account at AWS; only programs, flags and files are judged
//	<!-- needs: cluster -->  the rights of an administrator in a cluster; the same
//	<!-- needs: make -->     minutes; the same, and that the target is there
//	<!-- needs: other -->    something else that the text names; the same
//	<!-- needs: node -->     a machine with nth; typed on a booted one by the tests of test/packages
//
// Where a block calls aws, kubectl or make, that tells it, too. All other commands are typed by the tests here.
package docs

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/text"
)

// A Page is a file of the documentation.
type Page struct {
	Name     string // from the project's top
	Commands []Command
	Spans    []string // code within sentences
	Links    []string // where they lead, and which pictures are shown
	Anchors  []string // the names of its headings, as links have them
}

// A Command is one that a page has operators type.
type Command struct {
	Page   string
	Line   int
	Needs  string // what is said above its block; "" is nothing
	Text   string
	Output []string // what the page says that it prints; nil is nothing
}

func (c Command) String() string { return fmt.Sprintf("%s:%d: %s", c.Page, c.Line, c.Text) }

var (
	needs   = regexp.MustCompile(`<!-- needs: (aws|cluster|make|other|node) -->`)
	prompt  = regexp.MustCompile(`^(\[[^\]]*\]|sh-[0-9.]+)?\$ |^bash-[0-9.]+# `)
	program = regexp.MustCompile(`^(/?[a-z./]*/)?(nth|nth-imds|nth-queue|make|sudo|systemctl|journalctl|busctl|systemd-analyze|kubectl|` +
		`aws|apt|apt-get|dnf|rpm|dpkg|packer|terraform|curl|apiclient|export|cd|cp|cat|printf|echo|git|go|base64) [^ ]`)
)

// telling is what programs need by what they are.
var telling = map[string]string{
	"aws ": "aws", "apiclient ": "aws", "packer ": "aws", "terraform ": "aws", "kubectl ": "cluster", "make ": "make",
}

var tells = regexp.MustCompile(`\b(aws|apiclient|packer|terraform|kubectl|make) `)

// Read reads all pages of the project whose top directory it is: those at the top, in docs, and beside what they explain.
func Read(top string) ([]Page, error) {
	var pages []Page
	for _, where := range []string{"*.md", "docs/*.md", "bottlerocket/*.md", "packaging/*.md", "packaging/*/*.md"} {
		files, err := filepath.Glob(filepath.Join(top, where))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			source, err := os.ReadFile(file)
			if err != nil {
				return nil, err
			}
			name, err := filepath.Rel(top, file)
			if err != nil {
				return nil, err
			}
			pages = append(pages, Parse(name, source))
		}
	}
	if len(pages) < 10 {
		return nil, fmt.Errorf("reading the pages of %s: there are only %d", top, len(pages))
	}
	return pages, nil
}

// Parse reads the text of a page.
func Parse(name string, source []byte) Page {
	page := Page{Name: name}
	tree := goldmark.New(goldmark.WithExtensions(extension.GFM)).Parser().Parse(text.NewReader(source))
	_ = ast.Walk(tree, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		switch n := n.(type) {
		case *ast.FencedCodeBlock:
			if language := string(n.Language(source)); slices.Contains([]string{"", "console", "sh"}, language) {
				page.Commands = append(page.Commands, commands(name, source, n)...)
			}
		case *ast.CodeBlock:
			page.Commands = append(page.Commands, commands(name, source, n)...)
		case *ast.CodeSpan:
			page.Spans = append(page.Spans, words(n, source))
		case *ast.Link:
			page.Links = append(page.Links, string(n.Destination))
		case *ast.Image:
			page.Links = append(page.Links, string(n.Destination))
		case *ast.Heading:
			page.Anchors = append(page.Anchors, anchor(words(n, source), page.Anchors))
		}
		return ast.WalkContinue, nil
	})
	return page
}

// commands returns those of a block of code.
func commands(page string, source []byte, block ast.Node) []Command {
	needed := needsOf(block, source)
	lines := strings.Split(strings.TrimSuffix(string(block.Lines().Value(source)), "\n"), "\n")
	prompted := slices.ContainsFunc(lines, prompt.MatchString)
	first := 0
	if block.Lines().Len() > 0 {
		first = bytes.Count(source[:block.Lines().At(0).Start], []byte("\n")) + 1
	}
	var found []Command
	for i, line := range lines {
		switch {
		case i > 0 && len(found) > 0 && strings.HasSuffix(lines[i-1], "\\") && found[len(found)-1].Output == nil:
			last := &found[len(found)-1]
			last.Text = strings.TrimSuffix(last.Text, "\\") + strings.TrimSpace(line)
		case prompted && prompt.MatchString(line), !prompted && program.MatchString(line):
			command, _, _ := strings.Cut(prompt.ReplaceAllString(line, ""), "  #")
			found = append(found, Command{Page: page, Line: first + i, Needs: needed, Text: strings.TrimSpace(command)})
		case prompted && len(found) > 0 && line != "":
			found[len(found)-1].Output = append(found[len(found)-1].Output, line)
		}
	}
	return found
}

// needsOf is what a block says that it needs, or what its programs tell.
func needsOf(block ast.Node, source []byte) string {
	if above, ok := block.PreviousSibling().(*ast.HTMLBlock); ok {
		if found := needs.FindSubmatch(above.Lines().Value(source)); found != nil {
			return string(found[1])
		}
	}
	return telling[string(tells.Find(block.Lines().Value(source)))]
}

// words is the text of a heading or a span.
func words(n ast.Node, source []byte) string {
	var b strings.Builder
	for child := n.FirstChild(); child != nil; child = child.NextSibling() {
		if t, ok := child.(*ast.Text); ok {
			b.Write(t.Segment.Value(source))
		} else {
			b.WriteString(words(child, source))
		}
	}
	return b.String()
}

var unnamable = regexp.MustCompile(`[^\p{L}\p{N} _-]`)

// anchor is the name that GitHub gives to a heading; taken are those before it.
func anchor(heading string, taken []string) string {
	name := strings.ReplaceAll(unnamable.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
	for plain, n := name, 1; slices.Contains(taken, name); n++ {
		name = fmt.Sprintf("%s-%d", plain, n)
	}
	return name
}
