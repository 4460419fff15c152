package docs

import (
	"regexp"
	"strings"

	"time"

	"github.com/nth-project/nth/test/internal/lab"
)

// A Terminal is where commands are typed. It returns what the command has printed, and its exit status.
type Terminal func(command string) (printed string, status int)

const (
	// patience is how long a page may take to become true.
	patience = time.Minute
	// pause is between two looks.
	pause = 200 * time.Millisecond
)

// looks is what a command begins with that changes nothing: it may be repeated until it shows what it should.
var looks = regexp.MustCompile(`^(sudo )?((bin/)?nth(-imds)? (status|show|check)|systemctl (status|is-\w+)|journalctl|cat|tail|grep)\b`)

// Type types the commands, one after the other, and fails the test if one fails, or does not print what its page says.
func Type(t lab.TB, commands []Command, terminal Terminal) {
	t.Helper()
	for _, c := range commands {
		deadline := time.Now().Add(patience)
		for {
			printed, status := terminal(c.Text)
			missing := missing(c.Output, printed)
			if status == 0 && missing == "" {
				t.Logf("%s", c)
				break
			}
			if !looks.MatchString(c.Text) || time.Now().After(deadline) {
				t.Fatalf("%s\nstatus %d, it does not print %q but\n%s", c, status, missing, printed)
			}
			time.Sleep(pause)
		}
	}
}

// missing returns the first line that should have been printed and was not.
func missing(want []string, printed string) string {
	lines := strings.Split(printed, "\n")
	for _, line := range want {
		found := false
		for !found && len(lines) > 0 {
			found = shape(line).MatchString(lines[0])
			lines = lines[1:]
		}
		if !found {
			return line
		}
	}
	return ""
}

var varies = regexp.MustCompile(`^(\S*\d\S*|Jan)$`)

// shape matches what looks like the line of a page: words with digits in them, and the month of the examples,
// stand for any word, and an ellipsis for anything.
func shape(line string) *regexp.Regexp {
	fields := strings.Fields(line)
	for i, field := range fields {
		switch {
		case strings.Contains(field, "…"):
			fields[i] = strings.ReplaceAll(regexp.QuoteMeta(field), "…", ".*")
		case varies.MatchString(field):
			fields[i] = `\S+`
		default:
			fields[i] = regexp.QuoteMeta(field)
		}
	}
	return regexp.MustCompile(`^\s*` + strings.Join(fields, `\s+`) + `\s*$`)
}
