package rules_test

import (
	"go/ast"
	"go/token"
	"slices"
	"strconv"
	"strings"
)

// reference is one mention of a package's exported name, as in os.Exit.
type reference struct {
	name string // the import's path and the name
	pos  token.Pos
}

// references returns the mentions, called or not, of names from imported packages.
func (s source) references() []reference {
	imports := s.imports()
	var found []reference
	ast.Inspect(s.file, func(n ast.Node) bool {
		if selector, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := selector.X.(*ast.Ident); ok && imports[x.Name] != "" {
				found = append(found, reference{imports[x.Name] + "." + selector.Sel.Name, selector.Pos()})
			}
		}
		return true
	})
	return found
}

// only makes a check that names which match are mentioned nowhere but in some packages, and in tests where tests says so.
// A name that ends with * stands for all that begin so.
func only(names []string, tests bool, dirs ...string) func([]source) []string {
	matches := func(name string) bool {
		return slices.ContainsFunc(names, func(pattern string) bool {
			prefix, open := strings.CutSuffix(pattern, "*")
			return name == pattern || open && strings.HasPrefix(name, prefix)
		})
	}
	return each(func(s source) []string {
		if tests && s.test() || s.in(dirs...) {
			return nil
		}
		var findings []string
		for _, r := range s.references() {
			if matches(r.name) {
				findings = append(findings, s.at(r.pos)+": "+r.name)
			}
		}
		return findings
	})
}

var callRules = []rule{
	{
		name:  "only cmd ends the program",
		why:   "a package that exits skips everybody's cleanup, and cannot be tested",
		check: exits,
		breaks: map[string]string{
			"pkg/agent/a.go": "package agent\nimport \"os\"\nfunc f() { os.Exit(1) }",
			"pkg/drain/a.go": "package drain\nimport \"log\"\nfunc f() { log.Fatalf(\"no\") }",
			"pkg/drain/b.go": "package drain\nfunc (a agent) f() { a.log.WithError(nil).Fatal() }",
		},
		keeps: map[string]string{
			"cmd/nth/a.go":        "package main\nimport \"os\"\nfunc f() { os.Exit(1) }",
			"pkg/agent/a_test.go": "package agent\nimport \"os\"\nfunc f() { os.Exit(1) }",
			"pkg/agent/a.go":      "package agent\nimport \"os\"\nfunc f() { os.Getpid() }",
		},
	},
	{
		name:  "only cmd becomes another program",
		why:   "what begins as nth and goes on as something else is seen at the program's door, or nowhere",
		check: only([]string{"syscall.Exec", "syscall.Chroot", "golang.org/x/sys/unix.Exec", "golang.org/x/sys/unix.Chroot"}, true, "cmd/"),
		breaks: map[string]string{
			"pkg/kubelet/a.go": "package kubelet\nimport \"syscall\"\nfunc f() { syscall.Chroot(\"/\") }",
			"pkg/kubelet/b.go": "package kubelet\nimport \"golang.org/x/sys/unix\"\nvar x = unix.Exec",
		},
		keeps: map[string]string{"cmd/nth/a.go": "package main\nimport \"golang.org/x/sys/unix\"\nvar x = unix.Exec"},
	},
	{
		name:  "nothing panics",
		why:   "a node agent that dies cannot drain; a mistake is an error like any other",
		check: each(panics),
		breaks: map[string]string{
			"pkg/agent/a.go": "package agent\nfunc f() { panic(\"no\") }",
			"cmd/nth/a.go":   "package main\nfunc f() { panic(\"no\") }",
		},
		keeps: map[string]string{
			"pkg/imds/imdstest/a.go": "package imdstest\nfunc f() { panic(\"no\") }",
			"pkg/agent/a.go":         "package agent\nfunc f() { x.panic(\"no\") }",
		},
	},
	{
		name:  "only cmd begins a context",
		why:   "the deadline is the context; work that begins its own can be neither ended nor waited for",
		check: only([]string{"context.Background"}, true, "cmd/"),
		breaks: map[string]string{
			"pkg/agent/a.go": "package agent\nimport \"context\"\nvar x = context.Background()",
			"pkg/drain/a.go": "package drain\nimport c \"context\"\nvar x = c.Background",
		},
		keeps: map[string]string{
			"cmd/nth/a.go":   "package main\nimport \"context\"\nvar x = context.Background()",
			"pkg/agent/a.go": "package agent\nimport \"context\"\nvar x = context.WithTimeout",
		},
	},
	{
		name:   "nobody leaves a context for later",
		why:    "context.TODO says that the work is not done",
		check:  only([]string{"context.TODO"}, false),
		breaks: map[string]string{"pkg/agent/a_test.go": "package agent\nimport \"context\"\nvar x = context.TODO()"},
		keeps:  map[string]string{"pkg/agent/a.go": "package agent\nimport \"context\"\nvar x context.Context"},
	},
	{
		name: "only record, metrics and importing write files",
		why:  "nth runs as root on every node: what it leaves there is a few files that docs name",
		check: only([]string{"os.WriteFile", "os.Create*", "os.OpenFile", "os.Mkdir*", "os.Rename", "os.Remove*", "os.Symlink",
			"os.Link", "os.Ch*", "os.Truncate"}, true, "pkg/record", "pkg/metrics", "cmd/internal/importing"),
		breaks: map[string]string{
			"pkg/agent/a.go": "package agent\nimport \"os\"\nfunc f() { os.WriteFile(\"a\", nil, 0) }",
			"cmd/nth/a.go":   "package main\nimport \"os\"\nfunc f() { os.MkdirAll(\"a\", 0) }",
		},
		keeps: map[string]string{
			"pkg/record/a.go":     "package record\nimport \"os\"\nfunc f() { os.Rename(\"a\", \"b\") }",
			"pkg/kubelet/a.go":    "package kubelet\nimport \"os\"\nfunc f() { os.ReadFile(\"a\") }",
			"pkg/agent/a_test.go": "package agent\nimport \"os\"\nfunc f() { os.Remove(\"a\") }",
		},
	},
	{
		name:   "only cmd and systemd know the environment",
		why:    "settings are given to packages as values; systemd's own variables are part of its protocol",
		check:  only([]string{"os.Getenv", "os.LookupEnv", "os.Environ", "os.Setenv", "os.Unsetenv", "os.ExpandEnv"}, true, "cmd/", "pkg/systemd"),
		breaks: map[string]string{"pkg/imds/a.go": "package imds\nimport \"os\"\nvar x = os.Getenv(\"X\")"},
		keeps:  map[string]string{"cmd/nth/a.go": "package main\nimport \"os\"\nvar x = os.Getenv(\"X\")"},
	},
	{
		name:   "only nth-queue looks for credentials everywhere",
		why:    "nth has those of the instance's role; the other ways to find some would cost a megabyte on every node, and could find others",
		check:  only([]string{"github.com/aws/aws-sdk-go-v2/config.Load*"}, true, "cmd/nth-queue"),
		breaks: map[string]string{"pkg/role/a.go": "package role\nimport \"github.com/aws/aws-sdk-go-v2/config\"\nvar x = config.LoadDefaultConfig"},
		keeps:  map[string]string{"pkg/role/a.go": "package role\nimport \"github.com/aws/aws-sdk-go-v2/config\"\nvar x = config.NewEnvConfig"},
	},
	{
		name:   "what decides, describes or remembers reads no clock",
		why:    "time is given to them, so that every moment can be tested",
		check:  each(clocks),
		breaks: map[string]string{"pkg/policy/a.go": "package policy\nimport \"time\"\nvar x = time.Now()"},
		keeps: map[string]string{
			"pkg/policy/a.go": "package policy\nimport \"time\"\nvar x = time.Unix(0, 0)",
			"pkg/agent/a.go":  "package agent\nimport \"time\"\nvar x = time.Now()",
		},
	},
	{
		name: "nobody uses the process's shared HTTP client or server",
		why:  "the shared client waits for ever, and anything that is linked can add to the shared server",
		check: only([]string{"net/http.Get", "net/http.Head", "net/http.Post*", "net/http.DefaultClient", "net/http.DefaultServeMux",
			"net/http.Handle", "net/http.HandleFunc"}, true),
		breaks: map[string]string{"pkg/metrics/a.go": "package metrics\nimport \"net/http\"\nvar x = http.DefaultServeMux"},
		keeps:  map[string]string{"pkg/metrics/a.go": "package metrics\nimport \"net/http\"\nvar x = http.NewServeMux()"},
	},
	{
		name:   "only cmd prints",
		why:    "what a package has to say it returns, or logs with its fields",
		check:  only([]string{"fmt.Print*", "os.Stdout", "os.Stderr", "log.Print*"}, true, "cmd/"),
		breaks: map[string]string{"pkg/imds/a.go": "package imds\nimport \"fmt\"\nfunc f() { fmt.Println() }"},
		keeps:  map[string]string{"pkg/imds/a.go": "package imds\nimport \"fmt\"\nfunc f() { fmt.Sprint() }"},
	},
	{
		name:  "errors say what was being done",
		why:   "\"draining node a: evicting pod b: no answer\" can be read; a chain of \"failed to\" cannot",
		check: each(wordsOfErrors),
		breaks: map[string]string{
			"pkg/drain/a.go":         "package drain\nimport \"fmt\"\nvar x = fmt.Errorf(\"failed to drain: %w\", nil)",
			"test/internal/lab/a.go": "package lab\nimport \"errors\"\nvar x = errors.New(\"unable to start\")",
		},
		keeps: map[string]string{"pkg/drain/a.go": "package drain\nimport \"fmt\"\nvar x = fmt.Errorf(\"draining node %q: %w\", \"a\", nil)"},
	},
}

func exits(sources []source) []string {
	findings := only([]string{"os.Exit", "syscall.Exit"}, true, "cmd/")(sources)
	names := []string{"Fatal", "Fatalf", "Fatalln", "Panic", "Panicf", "Panicln"} // Of log, logrus and its entries.
	return append(findings, each(func(s source) []string {
		if s.test() || s.in("cmd/") {
			return nil
		}
		var findings []string
		ast.Inspect(s.file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				if f, ok := call.Fun.(*ast.SelectorExpr); ok && slices.Contains(names, f.Sel.Name) {
					findings = append(findings, s.at(call.Pos())+": "+f.Sel.Name)
				}
			}
			return true
		})
		return findings
	})(sources)...)
}

func panics(s source) []string {
	if s.test() {
		return nil
	}
	var findings []string
	ast.Inspect(s.file, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if f, ok := call.Fun.(*ast.Ident); ok && f.Name == "panic" {
				findings = append(findings, s.at(call.Pos())+": panic")
			}
		}
		return true
	})
	return findings
}

func clocks(s source) []string {
	if !s.in("pkg/policy", "pkg/event", "pkg/state", "pkg/record", "pkg/config") {
		return nil
	}
	return only([]string{"time.Now", "time.Since", "time.Until", "time.After*", "time.New*", "time.Tick", "time.Sleep"}, true)([]source{s})
}

func wordsOfErrors(s source) []string {
	var findings []string
	ast.Inspect(s.file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 {
			return true
		}
		selector, ok := call.Fun.(*ast.SelectorExpr)
		if !ok || selector.Sel.Name != "Errorf" && selector.Sel.Name != "New" {
			return true
		}
		literal, ok := call.Args[0].(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING {
			return true
		}
		text, _ := strconv.Unquote(literal.Value) // It was parsed.
		for _, words := range []string{"failed to ", "unable to ", "could not ", "error while ", "error when "} {
			if strings.HasPrefix(strings.ToLower(text), words) {
				findings = append(findings, s.at(call.Pos())+": "+literal.Value)
			}
		}
		return true
	})
	return findings
}
