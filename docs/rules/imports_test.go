package rules_test

import (
	"maps"
	"path"
	"slices"
	"strings"
	"testing"
)

// mayImport says for each package which others of the project its code (not its tests) may import. The programs cmd/nth and
// cmd/nth-queue, which wire them, and the lab may import any.
var mayImport = map[string][]string{
	"pkg/agent":             {"pkg/loop", "pkg/kube", "pkg/drain", "pkg/event", "pkg/policy", "pkg/state", "pkg/systemd"},
	"pkg/config":            {"pkg/event", "pkg/hours"},
	"pkg/drain":             {"pkg/evict", "pkg/kube", "pkg/loop", "pkg/state", "pkg/wait"},
	"pkg/evict":             {"pkg/kube", "pkg/loop", "pkg/state"},
	"pkg/drain/apitest":     {"pkg/kube"},
	"pkg/fleet":             {"pkg/loop", "pkg/agent", "pkg/asg", "pkg/kube", "pkg/drain", "pkg/event", "pkg/ec2", "pkg/policy", "pkg/sqs", "pkg/state", "pkg/systemd"},
	"pkg/imds":              {"pkg/loop", "pkg/event"},
	"pkg/imds/imdstest":     {"pkg/imds/standin"},
	"pkg/ec2":               {"pkg/event", "pkg/role"},
	"pkg/ec2/ec2test":       {"pkg/internal/querytest"},
	"pkg/sqs/sqstest":       {"pkg/internal/querytest"},
	"pkg/identity":          {"pkg/kube"},
	"pkg/kube":              {"pkg/loop"},
	"pkg/asg":               {"pkg/loop", "pkg/event", "pkg/role"},
	"pkg/asg/asgtest":       {"pkg/internal/querytest"},
	"pkg/logind":            {"pkg/loop", "pkg/event"},
	"pkg/metrics":           {"pkg/loop", "pkg/event", "pkg/state"},
	"pkg/notify":            {"pkg/kube", "pkg/event", "pkg/policy", "pkg/state"},
	"pkg/policy":            {"pkg/event", "pkg/hours", "pkg/state"},
	"pkg/sqs":               {"pkg/loop", "pkg/event", "pkg/role"},
	"pkg/record":            {"pkg/state"},
	"pkg/state":             {"pkg/event"},
	"pkg/targets":           {"pkg/loop", "pkg/role", "pkg/wait"},
	"pkg/targets/elbtest":   {"pkg/internal/querytest"},
	"pkg/wait":              {"pkg/loop", "pkg/kube"},
	"cmd/internal/checks":   {"cmd/internal/daemon", "cmd/internal/cli", "cmd/internal/settings", "pkg/config", "pkg/loop", "pkg/notify", "pkg/record", "pkg/role", "pkg/state"},
	"cmd/internal/daemon":   {"cmd/internal/cli", "cmd/internal/settings", "pkg/asg", "pkg/config", "pkg/drain", "pkg/event", "pkg/hours", "pkg/metrics", "pkg/notify", "pkg/policy", "pkg/systemd"},
	"cmd/internal/settings": {"cmd/internal/cli", "pkg/config", "pkg/migration", "pkg/notify"},
	"cmd/nth-imds":          {"cmd/internal/cli", "pkg/imds/imdstest"},
}

// libraries says which packages import what is not the project's.
var libraries = []permit{
	{"github.com/aws/aws-sdk-go-v2/config", []string{"cmd/nth-queue"}, "nth has the credentials of the instance's role; other ways would cost a megabyte on every node, and could find others"},
	{"github.com/aws/*", []string{"pkg/imds", "pkg/asg", "pkg/role", "pkg/sqs", "pkg/ec2", "pkg/targets", "cmd/nth-queue"}, "what AWS says is translated once, at the border"},
	{"golang.org/x/sync/errgroup", []string{"pkg/sqs"}, "requests that are made a few at once"},
	{"golang.org/x/sync/singleflight", []string{"pkg/asg", "pkg/identity"}, "what many ask for is asked once"},
	{"k8s.io/utils/lru", []string{"pkg/sqs"}, "what was seen is remembered, within bounds"},
	{"k8s.io/apimachinery/pkg/util/cache", []string{"pkg/asg"}, "what was seen is remembered, within bounds"},
	{"k8s.io/klog*", []string{"cmd/internal/daemon", "pkg/evict", "pkg/fleet"}, "the words of client-go are redirected once, in cmd/internal/daemon"},
	{"k8s.io/apimachinery/pkg/util/wait", []string{"pkg/role", "pkg/identity", "pkg/imds", "pkg/kube", "pkg/evict", "pkg/notify"}, "pauses with jitter are for those who ask a service that others ask, too"},
	{"gopkg.in/evanphx/json-patch.v4", []string{"pkg/rehearsal"}, "client-go's merge patch, which the simulated API server applies"},
	{"k8s.io/api/core/v1", []string{"pkg/drain", "pkg/evict", "pkg/notify", "pkg/fleet", "pkg/rehearsal", "pkg/wait", "cmd/nth-queue"}, "what a Node says is read where it is reported"},
	{"k8s.io/*", []string{"pkg/kube", "pkg/identity", "pkg/drain", "pkg/evict", "pkg/notify", "pkg/fleet", "pkg/rehearsal", "pkg/wait"}, "whoever can reach the API server can harm the node"},
	{"sigs.k8s.io/yaml", []string{"pkg/identity"}, "only a kubeconfig is YAML"},
	{"go.yaml.in/yaml/v3", []string{"pkg/migration"}, "it knows lines, and only foreign settings are YAML"},
	{"github.com/go-logr/*", []string{"cmd/internal/daemon", "pkg/evict", "pkg/fleet"}, "as for klog"},
	{"github.com/coreos/go-systemd/*", []string{"pkg/systemd"}, "nth must run, and be tested, without systemd"},
	{"github.com/godbus/*", []string{"pkg/logind"}, "nth must run, and be tested, without D-Bus"},
	{"github.com/BurntSushi/toml", []string{"pkg/config"}, "the file's format is nobody else's business"},
	{"github.com/Masterminds/*", []string{"pkg/notify"}, "templates are the webhook's alone"},
	{"github.com/DataDog/*", []string{"pkg/notify"}, "templates are the webhook's alone"},
	{"github.com/prometheus/*", []string{"pkg/metrics"}, "metrics follow from what is told, and never steer it"},
	{"github.com/sirupsen/logrus", []string{"cmd/nth", "cmd/nth-queue", "cmd/internal/checks", "cmd/internal/daemon", "pkg/agent", "pkg/fleet", "pkg/systemd"}, "errors are returned, and logged once, where it is decided what to do about them"},
	{"golang.org/x/net/*", []string{"pkg/identity", "pkg/metrics", "pkg/notify"}, "what of HTTP the standard library keeps to itself"},
	{"golang.org/x/sys/unix", []string{"pkg/powerkey", "pkg/record", "pkg/systemd"}, "most that is asked of the kernel is in the standard library"},
	{"os/signal", []string{"cmd/"}, "a package that takes signals cannot be run in a test"},
	{"github.com/spf13/*", []string{"cmd/"}, "settings are given to packages as values"},
	{"os/exec", []string{"pkg/identity"}, "nth runs no programs but the kubeconfig's exec plugin"},
}

// pure says what the packages that decide are made of: none of it has an effect, or knows more than it is given.
var pure = byPackage(map[string][]string{
	"pkg/": {"cmp", "crypto/sha256", "encoding/hex", "errors", "fmt", "hash/fnv", "slices", "strings", "time"},
})

var importRules = []rule{
	{
		name:    "imports go down the list of packages in docs/design.md",
		why:     "what happens goes one way, from source to notice; a package that looks back can no longer be read, or tested, alone",
		uses:    direction,
		permits: append(byPackage(mayImport), permit{what: "pkg/text", dirs: []string{"pkg/", "cmd/"}}),
	},
	{
		name:    "each library is imported where it belongs",
		why:     "a foreign type that travels through the program can never be replaced, and a new library needs a reason",
		uses:    placement,
		permits: libraries,
	},
	{
		name:    "what decides is made of nothing that has an effect, however far away",
		why:     "the same situation must give the same step after a crash, an upgrade or a reboot",
		uses:    purity,
		permits: pure,
	},
}

// byPackage makes permissions of what each package may.
func byPackage(may map[string][]string) []permit {
	dirs := map[string][]string{}
	for _, dir := range slices.Sorted(maps.Keys(may)) {
		for _, what := range may[dir] {
			dirs[what] = append(dirs[what], dir)
		}
	}
	var permits []permit
	for _, what := range slices.Sorted(maps.Keys(dirs)) {
		permits = append(permits, permit{what: what, dirs: dirs[what]})
	}
	return permits
}

// direction finds the imports of the project's own packages.
func direction(t tree) ([]use, error) {
	var found []use
	for _, s := range t.sources {
		if strings.HasSuffix(s.path, "_test.go") || s.lab() || s.dir() == "cmd/nth" || s.dir() == "cmd/nth-queue" {
			continue
		}
		for _, u := range s.imports() {
			if own, is := strings.CutPrefix(u.what, module+"/"); is {
				found = append(found, use{own, u.dir, u.at})
			}
		}
	}
	return found, nil
}

// placement finds the imports of libraries, and of those standard packages that have a permit.
func placement(t tree) ([]use, error) {
	var found []use
	for _, s := range t.sources {
		if s.test() {
			continue
		}
		for _, u := range s.imports() {
			host, _, _ := strings.Cut(u.what, "/")
			named := slices.ContainsFunc(libraries, func(p permit) bool { return p.what == u.what })
			if named || strings.Contains(host, ".") && !strings.HasPrefix(u.what, module+"/") {
				found = append(found, u)
			}
		}
	}
	return found, nil
}

// purity finds all that the packages which decide are made of, but for the project's own packages: those are looked into.
func purity(t tree) ([]use, error) {
	var found []use
	inside := deciding(t)
	for _, s := range t.sources {
		if s.test() || !inside[s.dir()] {
			continue
		}
		for _, u := range s.imports() {
			if !strings.HasPrefix(u.what, module+"/") {
				found = append(found, u)
			}
		}
	}
	return found, nil
}

// deciding returns the packages that decide, and those that they import, directly or not.
func deciding(t tree) map[string]bool {
	inside := map[string]bool{"pkg/policy": true, "pkg/event": true, "pkg/state": true}
	for before := 0; before != len(inside); {
		before = len(inside)
		for _, s := range t.sources {
			if s.test() || !inside[s.dir()] {
				continue
			}
			for _, u := range s.imports() {
				if own, is := strings.CutPrefix(u.what, module+"/"); is {
					inside[own] = true
				}
			}
		}
	}
	return inside
}

// weight are packages that the daemon must not be linked with, directly or not: they cost size and memory on every node
// of a fleet, or do what a daemon must not do.
var weight = map[string]string{
	"testing":                          "it is for tests",
	"plugin":                           "with a C compiler, the linker then keeps every method: the program is three times as large",
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
	output, err := list("-deps", "./cmd/nth")
	if err != nil {
		t.Fatal(err)
	}
	linked := strings.Fields(string(output))
	if !slices.Contains(linked, module+"/pkg/agent") {
		t.Fatal("cmd/nth is not linked with pkg/agent: the rule is looking at the wrong program")
	}
	for _, pkg := range linked {
		for part := pkg; part != "."; part = path.Dir(part) {
			if why, heavy := weight[part]; heavy {
				t.Errorf("cmd/nth is linked with %s: %s\n\tsee who imports it with: go mod why %s", pkg, why, pkg)
			}
		}
	}
}
