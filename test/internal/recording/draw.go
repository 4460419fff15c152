package recording

import (
	"encoding/xml"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// The picture's measures, in its own units; browsers scale it.
const (
	rows       = 32 // of the terminal; what was there before has scrolled away
	charWidth  = 7.2
	lineHeight = 17.0
	fontSize   = 12
	border     = 16.0
	bar        = 28.0 // with the title
)

// typed is how long the command is there before it says something.
const typed = 700 * time.Millisecond

// Draw returns a picture of a terminal in which the command was typed and has printed the lines.
func Draw(command string, printed []Line) []byte {
	lines := append([]Line{{Text: "$ " + command}}, printed...)
	columns := 0
	for i := range lines {
		columns = max(columns, utf8.RuneCountInString(lines[i].Text))
		if i > 0 {
			lines[i].At += typed
		}
	}
	width := 2*border + charWidth*float64(columns)
	height := bar + 2*border + lineHeight*float64(min(rows, len(lines)))
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" role="img" aria-label="%s, as it prints it">`+"\n",
		width, height, escape(command))
	fmt.Fprintf(&b, "<title>%s</title>\n<style>\n%s%s</style>\n", escape(command), colours(), motion(lines))
	fmt.Fprintf(&b, `<rect class="ground" x="0.5" y="0.5" width="%.0f" height="%.0f" rx="8"/>`+"\n", width-1, height-1)
	fmt.Fprintf(&b, `<text class="faint" x="%.0f" y="%.0f" text-anchor="middle">%s</text>`+"\n", width/2, bar*2/3, escape(command))
	fmt.Fprintf(&b, `<svg y="%.0f" width="%.0f" height="%.0f">`+"\n<g id=\"lines\" xml:space=\"preserve\">\n", bar, width, height-bar)
	for i, line := range lines {
		b.WriteString(draw(i, line))
	}
	b.WriteString("</g>\n</svg>\n</svg>\n")
	return []byte(b.String())
}

// draw returns the element of a line. Its length is given, so that columns stay columns in any font.
func draw(number int, line Line) string {
	if strings.TrimSpace(line.Text) == "" {
		return "<text/>\n"
	}
	return fmt.Sprintf(`<text class="%s" x="%.0f" y="%.0f" textLength="%.1f" style="animation-delay:%.2fs">%s</text>`+"\n",
		class(number, line.Text), border, border+lineHeight*float64(number)+fontSize, charWidth*float64(utf8.RuneCountInString(line.Text)),
		line.At.Seconds(), escape(line.Text))
}

// class says how a line looks. Nothing is said by its looks alone.
func class(number int, text string) string {
	text = strings.TrimSpace(text)
	switch {
	case number == 0:
		return "strong"
	case strings.Contains(text, "s  ! "):
		return "caution"
	case strings.Contains(text, "    drained: "):
		return "good"
	case strings.HasPrefix(text, "time "):
		return "faint"
	}
	return "plain"
}

// A palette is what a scheme of colours has for each class of lines.
type palette struct{ ground, edge, plain, strong, faint, caution, good string }

var (
	light = palette{ground: "#ffffff", edge: "#d0d7de", plain: "#1f2328", strong: "#0a0c10", faint: "#57606a", caution: "#8a4600", good: "#116329"}
	dark  = palette{ground: "#0d1117", edge: "#30363d", plain: "#d1d7e0", strong: "#ffffff", faint: "#9198a1", caution: "#e3b341", good: "#56d364"}
)

func colours() string {
	rules := func(p palette) string {
		return fmt.Sprintf(".ground{fill:%s;stroke:%s}.plain{fill:%s}.strong{fill:%s;font-weight:bold}.faint{fill:%s}.caution{fill:%s}.good{fill:%s;font-weight:bold}",
			p.ground, p.edge, p.plain, p.strong, p.faint, p.caution, p.good)
	}
	return fmt.Sprintf("text{font:%dpx ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;white-space:pre}\n%s\n@media (prefers-color-scheme:dark){%s}\n",
		fontSize, rules(light), rules(dark))
}

// motion has each line appear when it was printed, and the lines move up when the terminal is full. Without it, and for those who
// want no motion, the picture is what it is at the end.
func motion(lines []Line) string {
	end := lines[len(lines)-1].At
	over := max(0, len(lines)-rows)
	var scroll strings.Builder
	for i := rows; i < len(lines) && lines[i].At < end; i++ {
		fmt.Fprintf(&scroll, "%.2f%%{transform:translateY(%.0fpx)}", 100*lines[i].At.Seconds()/end.Seconds(), -lineHeight*float64(i+1-rows))
	}
	return fmt.Sprintf("#lines{transform:translateY(%.0fpx)}\n"+
		"@media (prefers-reduced-motion:no-preference){\n#lines text{animation:appear 1ms backwards}\n#lines{animation:scroll %.2fs step-end}\n}\n"+
		"@keyframes appear{from{opacity:0}}\n@keyframes scroll{0%%{transform:none}%s}\n",
		-lineHeight*float64(over), end.Seconds(), scroll.String())
}

func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // A builder takes everything.
	return b.String()
}
