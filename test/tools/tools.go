// Package tools builds and finds the programs that the lab runs: etcd, the
// Kubernetes control plane, kubectl and kwok; the kubelet and containerd, for
// the tests that need a node with real containers; Packer, with which images
// are made, for the tests that judge its templates; and fauxqs, an SQS that
// others have written, with the Node.js that it needs; the handler in a
// container that nth is measured beside, and AWS's own metadata service for its
// tests; and what judges workflows and pages.
//
// Each directory below holds a go.mod that pins one upstream project, because
// their requirements disagree with each other, or a package-lock.json that
// does so for npm. Build compiles what is missing
// into .cache/bin at the top of the project; Path says where a program is.
// A change of a go.mod, of a go.sum, of the Go release or of the flags leads to
// another directory in the cache, so a stale program is never found.
package tools

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/nth-project/nth/test/internal/cache"
)

// A suite is one go.mod and the programs that come from it in one build, so
// that the packages they share are compiled once.
type suite struct {
	name     string    // directory below test/tools, unless source says another
	source   string    // the directory, where it is shared with another suite
	upstream string    // module whose version the programs report
	stamps   []string  // variables that hold that version, for the linker
	tags     string    // build tags
	programs []program // in the order in which they are named to the person
	apart    bool      // built only where it is asked for: no cluster of simulated machines needs it
	npm      bool      // fetched by npm, as package-lock.json says, instead of built by go
}

// A program is one executable of a suite.
type program struct {
	name string // what the lab calls it
	pkg  string // its main package
	made string // the name go build gives it, where that is another one
}

var suites = []suite{
	{
		name:     "kubernetes",
		upstream: "k8s.io/kubernetes",
		stamps:   []string{"k8s.io/component-base/version.gitVersion"},
		programs: []program{
			{name: "kube-apiserver", pkg: "k8s.io/kubernetes/cmd/kube-apiserver"},
			{name: "kube-controller-manager", pkg: "k8s.io/kubernetes/cmd/kube-controller-manager"},
			{name: "kube-scheduler", pkg: "k8s.io/kubernetes/cmd/kube-scheduler"},
			{name: "kubectl", pkg: "k8s.io/kubernetes/cmd/kubectl"},
		},
	},
	{
		name:     "etcd",
		upstream: "go.etcd.io/etcd/server/v3",
		programs: []program{{name: "etcd", pkg: "go.etcd.io/etcd/server/v3", made: "server"}},
	},
	{
		name:     "kwok",
		upstream: "sigs.k8s.io/kwok",
		stamps:   []string{"sigs.k8s.io/kwok/pkg/consts.Version"},
		programs: []program{{name: "kwok", pkg: "sigs.k8s.io/kwok/cmd/kwok"}},
	},
	{
		name:     "kubelet",
		source:   "kubernetes",
		upstream: "k8s.io/kubernetes",
		stamps:   []string{"k8s.io/component-base/version.gitVersion"},
		programs: []program{{name: "kubelet", pkg: "k8s.io/kubernetes/cmd/kubelet"}},
		apart:    true,
	},
	{
		name:     "containerd",
		upstream: "github.com/containerd/containerd/v2",
		stamps:   []string{"github.com/containerd/containerd/v2/version.Version"},
		tags:     "no_btrfs,no_devmapper,no_zfs",
		programs: []program{
			{name: "containerd", pkg: "github.com/containerd/containerd/v2/cmd/containerd"},
			{name: "containerd-shim-runc-v2", pkg: "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"},
			{name: "ctr", pkg: "github.com/containerd/containerd/v2/cmd/ctr"},
		},
		apart: true,
	},
	{
		name:     "packer",
		upstream: "github.com/hashicorp/packer",
		programs: []program{{name: "packer", pkg: "github.com/hashicorp/packer"}},
		apart:    true,
	},
	{
		name:     "packer-amazon",
		upstream: "github.com/hashicorp/packer-plugin-amazon",
		programs: []program{{name: "packer-plugin-amazon", pkg: "github.com/hashicorp/packer-plugin-amazon"}},
		apart:    true,
	},
	{
		name:     "handler",
		upstream: "github.com/aws/aws-node-termination-handler",
		programs: []program{{name: "node-termination-handler", pkg: "github.com/aws/aws-node-termination-handler/cmd", made: "cmd"}},
		apart:    true,
	},
	{
		name:     "aemm",
		upstream: "github.com/aws/amazon-ec2-metadata-mock",
		programs: []program{{name: "ec2-metadata-mock", pkg: "github.com/aws/amazon-ec2-metadata-mock/cmd/ec2-metadata-mock"}},
		apart:    true,
	},
	{
		name:     "actionlint",
		upstream: "github.com/rhysd/actionlint",
		programs: []program{{name: "actionlint", pkg: "github.com/rhysd/actionlint/cmd/actionlint"}},
		apart:    true,
	},
	{
		name:     "markdownlint",
		programs: []program{{name: "markdownlint-cli2", made: "node_modules/markdownlint-cli2/markdownlint-cli2-bin.mjs"}},
		apart:    true,
		npm:      true,
	},
	{
		name: "fauxqs",
		programs: []program{
			{name: "fauxqs", made: "node_modules/fauxqs/dist/cli.js"},
			{name: "node", made: "node_modules/" + nodeJS(runtime.GOARCH) + "/bin/node"},
		},
		apart: true,
		npm:   true,
	},
}

// controlPlane is the directory of the control plane's release: the newest one,
// or the older one that the environment's NTH_KUBERNETES names, such as 1.34.
func controlPlane() string {
	if older := os.Getenv("NTH_KUBERNETES"); older != "" {
		return "kubernetes-" + older
	}
	return "kubernetes"
}

// Version returns the release of the upstream project that the suite's go.mod names.
func Version(name string) (string, error) {
	top, err := cache.Top()
	if err != nil {
		return "", err
	}
	at := slices.IndexFunc(suites, func(s suite) bool { return s.name == name && s.upstream != "" })
	if at < 0 {
		return "", fmt.Errorf("there is no go.mod for %q", name)
	}
	return suites[at].version(top)
}

func (s suite) version(top string) (string, error) {
	file := filepath.Join(s.directory(top), "go.mod")
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	found := regexp.MustCompile(regexp.QuoteMeta(s.upstream) + ` (v\S+)`).FindSubmatch(text)
	if found == nil {
		return "", fmt.Errorf("%s does not name %s", file, s.upstream)
	}
	return string(found[1]), nil
}

// Path returns where the named program is. A program that was not built yet is
// an error that says how to build it: a test must not spend five silent minutes
// in a compiler.
func Path(name string) (string, error) {
	top, err := cache.Top()
	if err != nil {
		return "", err
	}
	for _, s := range suites {
		for _, p := range s.programs {
			if p.name != name {
				continue
			}
			dir, err := s.cacheDir(top)
			if err != nil {
				return "", err
			}
			path := filepath.Join(dir, name)
			if _, err := os.Stat(path); err != nil {
				return "", fmt.Errorf("%s is not built: run `go run ./cmd/labtools%s` in %s", name, s.asked(), filepath.Join(top, "test"))
			}
			return path, nil
		}
	}
	return "", fmt.Errorf("%q is not a program of the lab", name)
}

// cacheDir returns the directory of the suite's programs, named after
// everything that decides what they are.
func (s suite) cacheDir(top string) (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, runtime.Version(), runtime.GOOS, runtime.GOARCH, linkerFlags, s.stamps)
	if s.tags != "" {
		fmt.Fprintln(sum, s.tags)
	}
	for _, file := range s.pins() {
		data, err := os.ReadFile(filepath.Join(s.directory(top), file))
		if err != nil {
			return "", fmt.Errorf("reading what %s is built from: %w", s.name, err)
		}
		sum.Write(data)
	}
	return filepath.Join(top, ".cache", "bin", fmt.Sprintf("%s-%.6x", s.name, sum.Sum(nil))), nil
}

// pins are the files that decide what the suite's programs are.
func (s suite) pins() []string {
	if s.npm {
		return []string{"package.json", "package-lock.json"}
	}
	return []string{"go.mod", "go.sum"}
}

// asked is what labtools is given to build the suite.
func (s suite) asked() string {
	if s.apart {
		return " " + s.name
	}
	return ""
}

// directory is where the suite's pins are.
func (s suite) directory(top string) string {
	source := cmp.Or(s.source, s.name)
	if s.name == "kubernetes" {
		source = controlPlane() // It is asked for here so that go test knows what its cached results depend on.
	}
	return filepath.Join(top, "test", "tools", source)
}

// String names the suite's programs for a person.
func (s suite) String() string {
	var names []string
	for _, p := range s.programs {
		names = append(names, p.name)
	}
	return strings.Join(names, ", ")
}
