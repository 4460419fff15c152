package docs_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nth-project/nth/test/internal/docs"
	"github.com/nth-project/nth/test/internal/lab"
)

func TestMain(m *testing.M) { os.Exit(lab.Main(m, 1)) }

// programs builds what operators run.
var programs = sync.OnceValues(func() (string, error) {
	dir, err := lab.Scratch()
	if err != nil {
		return "", err
	}
	build := exec.CommandContext(context.Background(), "go", "build", "-o", dir+"/", "./cmd/nth", "./cmd/nth-imds", "./cmd/nth-queue")
	build.Dir = top
	build.Stderr = os.Stderr
	return dir, build.Run()
})

// ours returns the directory with the programs.
func ours(t *testing.T) string {
	t.Helper()
	dir, err := programs()
	if err != nil {
		t.Fatalf("building the programs: %v", err)
	}
	return dir
}

// call is a program of ours, or make, with what comes behind it.
var call = regexp.MustCompile(`^(?:sudo |/usr)*(?:/?bin/)?(nth|nth-imds|nth-queue|make) (.*)$`)

func TestEveryCommandThatIsTypedCouldBe(t *testing.T) {
	judged := 0
	for _, page := range pages(t) {
		for _, c := range page.Commands {
			for _, part := range regexp.MustCompile(` && | \|\| | \| |; `).Split(c.Text, -1) {
				mustBeThere(t, c.String(), part)
			}
			judged++
		}
		for _, span := range page.Spans {
			if call.MatchString(span) {
				mustBeThere(t, page.Name+": "+span, span)
			}
		}
	}
	if judged < 40 {
		t.Errorf("there are only %d commands: the pages are read wrongly", judged)
	}
}

// mustBeThere fails the test unless all that the command names is there: the program's command and its flags, the
// target of make, and files of the project and its packages.
func mustBeThere(t *testing.T, where, command string) {
	t.Helper()
	if called := call.FindStringSubmatch(strings.TrimSuffix(command, " &")); called != nil && called[1] == "make" {
		mustBeTargets(t, where, called[2])
	} else if called != nil {
		mustBeUnderstood(t, where, called[1], strings.Fields(called[2]))
	}
	for _, word := range strings.Fields(command) {
		file := strings.Trim(word, `"'<>()`)
		if strings.HasPrefix(file, "packaging/") || strings.HasPrefix(file, "bottlerocket/") {
			if found, _ := filepath.Glob(filepath.Join(top, file)); len(found) == 0 {
				t.Errorf("%s: there is no %s", where, file)
			}
		}
		if shipped := strings.HasPrefix(file, "/usr/share/nth/") || strings.HasPrefix(file, "/usr/share/doc/nth/"); shipped && !packaged(t, file) {
			t.Errorf("%s: the package has no %s", where, file)
		}
	}
}

// packaged tells whether the package ships the file.
func packaged(t *testing.T, file string) bool {
	t.Helper()
	list, err := os.ReadFile(filepath.Join(top, "nfpm.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(list), "dst: "+file)
}

func mustBeTargets(t *testing.T, where, arguments string) {
	t.Helper()
	rules, err := os.ReadFile(filepath.Join(top, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range strings.Fields(regexp.MustCompile(`'[^']*'`).ReplaceAllString(arguments, "''")) {
		if strings.HasPrefix(target, "#") {
			return
		}
		if !strings.Contains(target, "=") && !strings.Contains(string(rules), "\n"+target+":") {
			t.Errorf("%s: make knows no %q", where, target)
		}
	}
}

// mustBeUnderstood fails the test unless the help of the program's command knows each flag.
func mustBeUnderstood(t *testing.T, where, program string, arguments []string) {
	t.Helper()
	var help []string
	for _, argument := range arguments {
		if strings.HasPrefix(argument, "-") || argument == "COMMAND" || argument == "help" {
			break
		}
		help = append(help, argument)
	}
	help = append(help, "--help")
	said, err := exec.CommandContext(t.Context(), filepath.Join(ours(t), program), help...).CombinedOutput()
	if err != nil {
		t.Errorf("%s: %v\n%s", where, err, said)
		return
	}
	flags := regexp.MustCompile(`--[a-z-]+`).FindAllString(string(said), -1)
	for _, argument := range arguments {
		flag, _, _ := strings.Cut(argument, "=")
		if strings.HasPrefix(flag, "--") && flag != "--help" && !slices.Contains(flags, flag) {
			t.Errorf("%s: %s %s knows no %s", where, program, arguments[0], flag)
		}
	}
}

// harmless is what may be typed on the machine that runs the tests.
var harmless = regexp.MustCompile(`^(bin/nth(-imds|-queue)? |printf |cat |base64 |kill |export )`)

// Everything else has to tell what it needs, so that it is never typed here.
func TestWhatNeedsMoreThanThisProjectSaysSo(t *testing.T) {
	for _, page := range pages(t) {
		for _, c := range page.Commands {
			if c.Needs == "" && !harmless.MatchString(c.Text) {
				t.Errorf("%s\n\tthe block lacks a word about what it needs, such as <!-- needs: node -->", c)
			}
		}
	}
}

func TestEveryPageCanBeTyped(t *testing.T) {
	typed := 0
	for _, page := range pages(t) {
		commands := slices.DeleteFunc(slices.Clone(page.Commands), func(c docs.Command) bool {
			return c.Needs != "" || !harmless.MatchString(c.Text)
		})
		if len(commands) > 0 {
			typed++
			t.Run(page.Name, func(t *testing.T) { docs.Type(t, commands, shell(t)) })
		}
	}
	if typed == 0 {
		t.Error("no page has a command that can be typed: the pages are read wrongly")
	}
}
