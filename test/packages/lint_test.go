package packages

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/nth-project/nth/test/internal/cache"
	"github.com/nth-project/nth/test/internal/host"
	"github.com/nth-project/nth/test/internal/machine"
)

// tasters are programs of Debian's that judge what the packages hold.
var tasters = []string{"lintian", "rpmlint"}

// Overrides are in packaging/deb and packaging/queue (lintian-overrides) and in packaging/rpm/rpmlint.toml, each with its reason.
func TestLintersFindNothingToSay(t *testing.T) {
	t.Parallel()
	m := machine.Boot(t, "trixie", tasters...)
	top, err := cache.Top()
	if err != nil {
		t.Fatal(err)
	}
	m.Put(t, filepath.Join(top, "packaging", "rpm", "rpmlint.toml"), "/root/rpmlint.toml")
	for _, name := range []string{"nth", "nth-queue"} {
		deb, rpm := host.PackageOf(t, name, host.Older, "deb"), host.PackageOf(t, name, host.Older, "rpm")
		m.Put(t, deb, "/root/"+name+".deb")
		m.Put(t, rpm, "/root/"+filepath.Base(rpm)) // which judges the name, too
		o := m.Try(t, "lintian", "--allow-root", "--fail-on=error,warning", "--display-info", "--pedantic", "/root/"+name+".deb")
		if o.Status != 0 || o.Stdout != "" {
			t.Errorf("lintian says of %s\n%s%s", name, o.Stdout, o.Stderr)
		}
		o = m.Try(t, "rpmlint", "--strict", "--config", "/root/rpmlint.toml", "/root/"+filepath.Base(rpm))
		if o.Status != 0 {
			t.Errorf("rpmlint says of %s\n%s%s", name, o.Stdout, o.Stderr)
		}
	}
}

// Whoever has the source of a version can make its packages, and see that they are those that were published.
func TestTheSameSourceGivesTheSameBytes(t *testing.T) {
	t.Parallel()
	top, err := cache.Top()
	if err != nil {
		t.Fatal(err)
	}
	dirs := []string{t.TempDir(), t.TempDir()}
	for _, dir := range dirs {
		command := exec.Command(filepath.Join(top, "packaging", "build"), dir)
		command.Env = append(os.Environ(), "TZ=Asia/Kolkata", "SOURCE_DATE_EPOCH=1767225600")
		if dir == dirs[1] {
			command.Env = append(os.Environ(), "TZ=America/New_York", "SOURCE_DATE_EPOCH=1767225600", "HOSTNAME=other")
		}
		if said, err := command.CombinedOutput(); err != nil {
			t.Fatalf("making the packages: %v\n%s", err, said)
		}
	}
	files, err := os.ReadDir(dirs[0])
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 8 {
		t.Errorf("the packages are %v, want two debs and two rpms for each of two architectures", files)
	}
	for _, file := range files {
		first, errFirst := os.ReadFile(filepath.Join(dirs[0], file.Name()))
		second, errSecond := os.ReadFile(filepath.Join(dirs[1], file.Name()))
		if errFirst != nil || errSecond != nil || !bytes.Equal(first, second) {
			t.Errorf("%s is not the same twice (%v, %v)", file.Name(), errFirst, errSecond)
		}
	}
}
