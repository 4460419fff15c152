package tools_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/nth-project/nth/test/tools"
)

var programs = []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "etcd", "kwok"}

func TestAProgramThatIsNotBuiltIsAnErrorThatSaysHowToBuildIt(t *testing.T) {
	top := newProject(t)
	_, err := tools.Path("etcd")
	if err == nil || !strings.Contains(err.Error(), "go run ./cmd/labtools") || !strings.Contains(err.Error(), top) {
		t.Errorf("got %v, want the command and the directory", err)
	}
}

func TestAnUnknownProgramIsAnError(t *testing.T) {
	newProject(t)
	if _, err := tools.Path("kubeadm"); err == nil || !strings.Contains(err.Error(), `"kubeadm"`) {
		t.Errorf("got %v, want an error that names the program", err)
	}
}

func TestOutsideOfTheProjectNoProgramIsFound(t *testing.T) {
	t.Chdir(t.TempDir())
	if _, err := tools.Path("etcd"); err == nil || !strings.Contains(err.Error(), "not inside it") {
		t.Errorf("got %v, want an error about the directory", err)
	}
}

func TestABuildTellsOfEveryProgramAndASecondOneIsSilent(t *testing.T) {
	newProject(t)
	said := build(t)
	for _, name := range programs {
		if !strings.Contains(said, "  "+name+" ") {
			t.Errorf("the build does not tell that %s is there:\n%s", name, said)
		}
		if path, err := tools.Path(name); err != nil || filepath.Base(path) != name {
			t.Errorf("%s is at %q, %v", name, path, err)
		}
	}
	if again := build(t); again != "" {
		t.Errorf("the second build said %q", again)
	}
}

func TestAProgramThatIsApartIsBuiltOnlyWhereItIsAskedFor(t *testing.T) {
	newProject(t)
	build(t)
	if _, err := tools.Path("kubelet"); err == nil || !strings.Contains(err.Error(), "go run ./cmd/labtools kubelet`") {
		t.Errorf("got %v, want the command that builds it", err)
	}
	build(t, "kubelet")
	if path, err := tools.Path("kubelet"); err != nil || filepath.Base(path) != "kubelet" {
		t.Errorf("kubelet is at %q, %v", path, err)
	}
}

func TestAProgramIsFoundUntilWhatItIsBuiltFromChanges(t *testing.T) {
	for _, changed := range []string{"go.mod", "go.sum"} {
		t.Run(changed, func(t *testing.T) {
			top := newProject(t)
			build(t)
			write(t, filepath.Join(top, "test", "tools", "etcd", changed), "another release")
			if path, err := tools.Path("etcd"); err == nil {
				t.Errorf("got the stale %s", path)
			}
			if path, err := tools.Path("kwok"); err != nil {
				t.Errorf("kwok is at %q, %v although it did not change", path, err)
			}
		})
	}
}

func TestTwoBuildsAtOnceCompileOnce(t *testing.T) {
	top := newProject(t)
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			var out strings.Builder
			if err := tools.Build(t.Context(), &out); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	calls, err := os.ReadFile(filepath.Join(top, "calls"))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(string(calls), "build"); got != 3 {
		t.Errorf("go build ran %d times for three go.mod files", got)
	}
}

func TestABuildThatFailsSaysWhyAndLeavesNothingBehind(t *testing.T) {
	top := newProject(t)
	write(t, filepath.Join(top, "broken"), "")
	var out strings.Builder
	err := tools.Build(t.Context(), &out)
	if err == nil || !strings.Contains(err.Error(), "main.go:1: syntax error") {
		t.Errorf("got %v, want what the compiler said", err)
	}
	left, err := filepath.Glob(filepath.Join(top, ".cache", "bin", "*kubernetes-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range left {
		if !strings.HasSuffix(path, ".lock") {
			t.Errorf("%s was left behind", path)
		}
	}
}

// goCommand stands in for the go command: it notes how it is called, and puts
// an empty file in place of each program, under the name that Go would choose.
const goCommand = `#!/bin/sh
top=$(cd ../../.. && pwd)
echo "$1" >>"$top/calls"
[ "$1" = list ] && echo v1.2.3 && exit
[ -e "$top/broken" ] && echo "main.go:1: syntax error" >&2 && exit 1
while [ "$1" != -o ]; do shift; done
into=$2; shift 2
for package; do
	echo "$package" >&2
	touch "$into$(basename "${package%/v3}")"
done
`

// newProject makes a project with nothing built, and goes deep inside it.
func newProject(t *testing.T) (top string) {
	t.Helper()
	top = t.TempDir()
	for _, suite := range []string{"kubernetes", "etcd", "kwok"} {
		for _, file := range []string{"go.mod", "go.sum"} {
			write(t, filepath.Join(top, "test", "tools", suite, file), suite)
		}
	}
	write(t, filepath.Join(top, "fake", "go"), goCommand)
	t.Setenv("PATH", filepath.Join(top, "fake")+string(os.PathListSeparator)+os.Getenv("PATH"))
	t.Chdir(filepath.Join(top, "test", "tools", "etcd"))
	return top
}

func build(t *testing.T, apart ...string) (said string) {
	t.Helper()
	var out strings.Builder
	if err := tools.Build(t.Context(), &out, apart...); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}
