package text_test

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/nth-project/nth/pkg/text"
)

func TestVisible_ShowsWhatCannotBeSeen(t *testing.T) {
	for _, c := range []struct{ name, given, want string }{
		{"nothing", "", ""},
		{"plain", `default/web-0: "8 s" \n`, `default/web-0: "8 s" \n`},
		{"other scripts", "Größe 大きさ 🚀", "Größe 大きさ 🚀"},
		{"line breaks", "web\nnode is drained\r\n\tyes", `web\nnode is drained\r\n\tyes`},
		{"terminal escapes", "\x1b[2J\x1b]0;title\a\u009b1m\x7f", `\x1b[2J\x1b]0;title\a\u009b1m\x7f`},
		{"direction of writing", "a\u202eb\u2066c\u200fd", `a\u202eb\u2066c\u200fd`},
		{"separators", "a\u2028b\u2029c\u00a0d\ufeffe", `a\u2028b\u2029c\u00a0d\ufeffe`},
		{"letters that nobody sees", "web\u3164\u115f\uffa0\u034f-0", `web\u3164\u115f\uffa0\u034f-0`},
		{"not UTF-8", "a\xff\xc3(b", `a\xff\xc3(b`},
		{"the replacement character itself", "a\ufffdb", "a\ufffdb"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := text.Visible(c.given, text.Line); got != c.want {
				t.Errorf("Visible(%q) = %q, want %q", c.given, got, c.want)
			}
		})
	}
}

func TestVisible_BoundsTheLength(t *testing.T) {
	for _, c := range []struct{ given, want string }{
		{"0123456789", "0123456789"},
		{"0123456789a", "0123456…"},
		{"012345678ä", "0123456…"},
		{"012345ää", "012345ää"},
		{"0123456\n\n", `0123456…`},
		{"012345\n\n", `012345\n\n`},
		{"\x00\x00\x00", `\x00…`},
	} {
		if got := text.Visible(c.given, 10); got != c.want || len(got) > 10 {
			t.Errorf("Visible(%q, 10) = %q, want %q", c.given, got, c.want)
		}
	}
}

func FuzzVisible(f *testing.F) {
	f.Add("a\x1b[1m\u202e\xff…")
	f.Add(strings.Repeat("ä\n", 200))
	f.Fuzz(func(t *testing.T, given string) {
		got := text.Visible(given, text.Name)
		if len(got) > text.Name || !utf8.ValidString(got) {
			t.Fatalf("%d bytes, %q", len(got), got)
		}
		if at := strings.IndexFunc(got, func(r rune) bool { return r != utf8.RuneError && !unicode.IsPrint(r) }); at >= 0 {
			t.Fatalf("%q at %d cannot be seen", got, at)
		}
		if again := text.Visible(got, text.Name); again != got {
			t.Fatalf("%q became %q", got, again)
		}
	})
}
