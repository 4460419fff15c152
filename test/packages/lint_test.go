package packages

import (
	"path/filepath"
	"testing"

	"github.com/nth-project/nth/test/internal/cache"
	"github.com/nth-project/nth/test/internal/host"
	"github.com/nth-project/nth/test/internal/machine"
)

// tasters are programs of Debian's that judge what the packages hold.
var tasters = []string{"lintian", "rpmlint", "selinux-policy-dev"}

// Overrides are in packaging/deb and packaging/queue (lintian-overrides) and in packaging/rpm/rpmlint.toml, each with its reason.
func TestLinters_FindNothingToSay(t *testing.T) {
	t.Parallel()
	m := machine.Boot(t, "trixie", tasters...)
	top, err := cache.Top()
	if err != nil {
		t.Fatal(err)
	}
	m.Put(t, filepath.Join(top, "packaging", "rpm", "rpmlint.toml"), "/root/rpmlint.toml")
	for _, file := range []string{"nth.te", "nth.fc"} {
		m.Put(t, filepath.Join(top, "packaging", "selinux", file), "/root/"+file)
	}
	m.Run(t, "make", "-C", "/root", "-f", "/usr/share/selinux/devel/Makefile", "nth.pp") // By checkmodule, with the reference policy.
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
