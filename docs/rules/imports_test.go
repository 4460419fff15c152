package rules_test

import (
	"bytes"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// mayImport says for each package which others of the project its code (not its tests) may import. cmd/nth, which wires
// them, and the lab may import any; packages for tests, whose names end so, none but what the table says.
var mayImport = map[string][]string{
	"pkg/agent":               {"pkg/drain", "pkg/event", "pkg/notify", "pkg/policy", "pkg/state", "pkg/systemd"},
	"pkg/apiserver":           {"pkg/plugin"},
	"pkg/bottlerocket":        {},
	"pkg/config":              {"pkg/event"},
	"pkg/drain":               {"pkg/state"},
	"pkg/drain/apitest":       {"pkg/internal/pipetest"},
	"pkg/ekstoken":            {"pkg/role"},
	"pkg/ena":                 {},
	"pkg/event":               {},
	"pkg/fleet":               {"pkg/agent", "pkg/apiserver", "pkg/drain", "pkg/event", "pkg/ec2", "pkg/policy", "pkg/sqs", "pkg/state", "pkg/systemd"},
	"pkg/imds":                {"pkg/event"},
	"pkg/imds/imdstest":       {"pkg/imds/standin"},
	"pkg/imds/standin":        {},
	"pkg/ec2":                 {"pkg/role"},
	"pkg/ec2/ec2test":         {"pkg/internal/querytest"},
	"pkg/internal/simulation": {}, // it is made of tests
	"pkg/kubelet":             {"pkg/apiserver"},
	"pkg/asg":                 {"pkg/event", "pkg/role"},
	"pkg/asg/asgtest":         {"pkg/internal/querytest"},
	"pkg/logind":              {"pkg/event"},
	"pkg/metrics":             {"pkg/event", "pkg/state"},
	"pkg/migration":           {},
	"pkg/notify":              {"pkg/drain", "pkg/event", "pkg/policy", "pkg/record", "pkg/state"},
	"pkg/plugin":              {},
	"pkg/powerkey":            {},
	"pkg/policy":              {"pkg/event", "pkg/state"},
	"pkg/sqs":                 {"pkg/event", "pkg/role"},
	"pkg/record":              {"pkg/state"},
	"pkg/rehearsal":           {},
	"pkg/reservation":         {"pkg/event", "pkg/role"},
	"pkg/role":                {},
	"pkg/state":               {"pkg/event"},
	"pkg/systemd":             {},
	"pkg/targets":             {"pkg/role"},
	"pkg/targets/elbtest":     {"pkg/internal/querytest"},
	"cmd/internal/checks":     {"cmd/internal/daemon", "cmd/internal/program", "cmd/internal/settings", "pkg/config", "pkg/notify", "pkg/record", "pkg/state"},
	"cmd/internal/daemon":     {"cmd/internal/program", "cmd/internal/settings", "pkg/asg", "pkg/config", "pkg/drain", "pkg/event", "pkg/metrics", "pkg/notify", "pkg/policy", "pkg/record", "pkg/state", "pkg/systemd"},
	"cmd/internal/importing":  {"cmd/internal/program", "pkg/migration", "pkg/notify"},
	"cmd/internal/program":    {},
	"cmd/internal/settings":   {"cmd/internal/importing", "cmd/internal/program", "pkg/config", "pkg/logind", "pkg/notify", "pkg/systemd"},
	"cmd/nth-imds":            {"pkg/imds/imdstest"},
	"docs/rules":              {},
}

// library says that what begins with prefix is imported in some packages only.
type library struct {
	prefix string
	in     []string
	why    string
}

var libraries = []library{
	{"github.com/aws/", []string{"pkg/imds", "pkg/asg", "pkg/role", "pkg/ekstoken", "pkg/sqs", "pkg/ec2", "pkg/reservation", "pkg/targets", "cmd/nth-queue"}, "what AWS says is translated once, at the border"},
	{"k8s.io/klog", []string{"cmd/internal/daemon", "pkg/drain", "pkg/fleet", "pkg/kubelet", "pkg/notify"}, "the words of client-go are redirected once, in cmd/internal/daemon"},
	{"k8s.io/apimachinery/pkg/util/wait", []string{"pkg/role", "pkg/apiserver", "pkg/imds", "pkg/kubelet", "pkg/drain", "pkg/notify", "pkg/fleet"}, "pauses with jitter are for those who ask a service that others ask, too"},
	{"k8s.io/", []string{"pkg/apiserver", "pkg/plugin", "pkg/kubelet", "pkg/drain", "pkg/notify", "pkg/fleet", "pkg/rehearsal"}, "whoever can reach the API server can harm the node"},
	{"sigs.k8s.io/yaml", []string{"pkg/migration", "pkg/kubelet"}, "only foreign settings are YAML"},
	{"sigs.k8s.io/", []string{"pkg/kubelet", "pkg/drain", "pkg/notify"}, "as for k8s.io"},
	{"github.com/coreos/go-systemd/", []string{"pkg/systemd", "pkg/logind"}, "nth must run, and be tested, without systemd"},
	{"github.com/godbus/", []string{"pkg/logind"}, "nth must run, and be tested, without D-Bus"},
	{"github.com/BurntSushi/toml", []string{"pkg/config"}, "the file's format is nobody else's business"},
	{"github.com/Masterminds/", []string{"pkg/notify"}, "templates are the webhook's alone"},
	{"github.com/DataDog/", []string{"pkg/notify"}, "templates are the webhook's alone"},
	{"text/template/parse", []string{"pkg/notify"}, "templates are the webhook's alone"},
	{"text/template", nil, "it calls methods by name, so the linker keeps every method there is: 18 MB. There is an engine that does not"},
	{"html/template", nil, "as for text/template"},
	{"github.com/prometheus/", []string{"pkg/metrics"}, "metrics follow from what is told, and never steer it"},
	{"github.com/sirupsen/logrus", []string{"cmd/nth", "cmd/nth-queue", "cmd/internal/checks", "cmd/internal/daemon", "pkg/agent", "pkg/fleet", "pkg/systemd"}, "errors are returned, and logged once, where it is decided what to do about them"},
	{"os/signal", []string{"cmd/"}, "a package that takes signals cannot be run in a test"},
	{"flag", []string{"cmd/"}, "settings are given to packages as values"},
	{"os/exec", []string{"cmd/", "pkg/plugin"}, "nth runs no programs but the kubeconfig's exec plugin"},
}

// unwanted are libraries that nobody imports, tests included.
var unwanted = map[string]string{
	"github.com/stretchr/":                  "the standard testing package says it",
	"github.com/onsi/":                      "the standard testing package says it",
	"github.com/pkg/errors":                 "fmt.Errorf and errors say it",
	"golang.org/x/exp":                      "it makes no promises",
	"math/rand":                             "math/rand/v2 needs no seed",
	"io/ioutil":                             "it is deprecated",
	"k8s.io/kubernetes":                     "it is no library",
	"k8s.io/client-go/tools/leaderelection": "a node decides for itself",
}

// pure are the packages that policy, and state and event, of which it is made, are made of.
var pure = []string{"cmp", "errors", "fmt", "hash/fnv", "maps", "math", "slices", "strings", "time", module + "/pkg/event", module + "/pkg/state"}

var importRules = []rule{
	{
		name:  "imports go down the list of packages in docs/design.md",
		why:   "what happens goes one way, from source to notice; a package that looks back can no longer be read, or tested, alone",
		check: each(direction),
		breaks: map[string]string{
			"pkg/event/a.go":    "package event\nimport _ \"" + module + "/pkg/policy\"",
			"pkg/drain/a.go":    "package drain\nimport _ \"" + module + "/pkg/config\"",
			"pkg/surprise/a.go": "package surprise",
		},
		keeps: map[string]string{
			"pkg/policy/a.go":              "package policy\nimport _ \"" + module + "/pkg/state\"",
			"cmd/nth/a.go":                 "package main\nimport _ \"" + module + "/pkg/config\"",
			"pkg/imds/a_test.go":           "package imds_test\nimport _ \"" + module + "/pkg/imds/imdstest\"",
			"test/internal/lab/machine.go": "package lab\nimport _ \"" + module + "/pkg/imds/imdstest\"",
		},
	},
	{
		name:  "each library is imported where it belongs",
		why:   "a foreign type that travels through the program can never be replaced; the finding says what this one's place is for",
		check: each(placement),
		breaks: map[string]string{
			"pkg/agent/a.go":      "package agent\nimport _ \"k8s.io/client-go/kubernetes\"",
			"pkg/policy/a.go":     "package policy\nimport _ \"github.com/aws/aws-sdk-go-v2/aws\"",
			"pkg/systemd/a.go":    "package systemd\nimport _ \"flag\"",
			"pkg/drain/a_test.go": "package drain_test\nimport _ \"github.com/stretchr/testify/require\"",
		},
		keeps: map[string]string{
			"pkg/drain/a.go":      "package drain\nimport _ \"k8s.io/client-go/kubernetes\"",
			"cmd/nth/a.go":        "package main\nimport _ \"flag\"",
			"pkg/agent/a_test.go": "package agent_test\nimport _ \"k8s.io/client-go/kubernetes/fake\"",
			"pkg/imds/a.go":       "package imds\nimport _ \"math/rand/v2\"",
		},
	},
	{
		name:  "policy and what it is made of have no effect",
		why:   "the same situation must give the same step after a crash, an upgrade or a reboot",
		check: each(purity),
		breaks: map[string]string{
			"pkg/policy/a.go": "package policy\nimport _ \"os\"",
			"pkg/policy/b.go": "package policy\nimport _ \"context\"",
			"pkg/policy/c.go": "package policy\nimport _ \"" + module + "/pkg/record\"",
			"pkg/state/a.go":  "package state\nimport _ \"os\"",
			"pkg/event/a.go":  "package event\nimport _ \"net/http\"",
		},
		keeps: map[string]string{
			"pkg/policy/a.go":      "package policy\nimport _ \"time\"",
			"pkg/policy/a_test.go": "package policy_test\nimport _ \"os\"",
			"pkg/record/a.go":      "package record\nimport _ \"os\"",
		},
	},
}

func direction(s source) []string {
	allowed, known := mayImport[s.dir()]
	if strings.HasSuffix(s.path, "_test.go") || s.in("cmd/nth", "cmd/nth-queue") || s.lab() {
		return nil
	}
	if !known && !strings.HasSuffix(s.dir(), "test") {
		return []string{s.path + ": the package is new; docs/design.md and the table in docs/rules must say what it is for and what it may import"}
	}
	var findings []string
	for _, imported := range s.imports() {
		own, found := strings.CutPrefix(imported, module+"/")
		if found && !slices.Contains(allowed, own) {
			findings = append(findings, fmt.Sprintf("%s: imports %s; it may import %v", s.path, own, allowed))
		}
	}
	return findings
}

func placement(s source) []string {
	var findings []string
	for _, imported := range slices.Sorted(maps.Values(s.imports())) {
		for prefix, why := range unwanted {
			if imported == prefix || prefix[len(prefix)-1] == '/' && strings.HasPrefix(imported, prefix) {
				findings = append(findings, fmt.Sprintf("%s: imports %s: %s", s.path, imported, why))
			}
		}
		i := slices.IndexFunc(libraries, func(l library) bool {
			return imported == l.prefix || strings.HasPrefix(imported, strings.TrimSuffix(l.prefix, "/")+"/")
		})
		if i >= 0 && !s.test() && !s.in(libraries[i].in...) {
			findings = append(findings, fmt.Sprintf("%s: imports %s, which belongs in %v: %s", s.path, imported, libraries[i].in, libraries[i].why))
		}
	}
	return findings
}

func purity(s source) []string {
	var findings []string
	for _, imported := range slices.Sorted(maps.Values(s.imports())) {
		if s.in("pkg/policy", "pkg/state", "pkg/event") && !s.test() && !slices.Contains(pure, imported) {
			findings = append(findings, fmt.Sprintf("%s: imports %s; policy and what it is made of import %v", s.path, imported, pure))
		}
	}
	return findings
}

// weight are packages that the daemon must not be linked with, directly or not: they cost size and memory on every node
// of a fleet, or do what a daemon must not do.
var weight = map[string]string{
	"testing":                          "it is for tests",
	"net/http/pprof":                   "it puts handlers into every server of the process",
	"k8s.io/client-go/kubernetes/fake": "it is for tests",
	"k8s.io/client-go/informers":       "a node watches its own pods, and caches no others",
	"k8s.io/apiserver":                 "it is a server",
	"k8s.io/component-base/cli":        "nth has its own commands",
	"k8s.io/kubectl/pkg/cmd/drain":     "nth is no kubectl",
	"sigs.k8s.io/controller-runtime":   "a node is no controller",
	module + "/pkg/imds/imdstest":      "the simulator belongs to nth-imds and to tests",
}

func TestTheDaemonIsNotLinkedWithWhatItDoesNotNeed(t *testing.T) {
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "./cmd/nth")
	var stderr bytes.Buffer
	list.Dir, list.Stderr = top, &stderr
	output, err := list.Output()
	if err != nil {
		t.Fatalf("listing what cmd/nth is linked with: %v\n%s", err, stderr.String())
	}
	linked := strings.Fields(string(output))
	if !slices.Contains(linked, module+"/pkg/agent") {
		t.Fatal("cmd/nth is not linked with pkg/agent: the rule is looking at the wrong program")
	}
	for _, pkg := range linked {
		for heavy, why := range weight {
			if pkg == heavy || strings.HasPrefix(pkg, heavy+"/") {
				t.Errorf("cmd/nth is linked with %s: %s\n\tsee who imports it with: go mod why %s", pkg, why, pkg)
			}
		}
	}
}
