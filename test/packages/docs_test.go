package packages

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/nth-project/nth/test/internal/cache"
	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/docs"
	"github.com/nth-project/nth/test/internal/host"
	"github.com/nth-project/nth/test/internal/lab"
)

// What operators are to type on a node, by the pages, is typed on one: installing nth first, removing it at the end.
func TestWhatThePagesSayCanBeTypedOnANode(t *testing.T) {
	t.Parallel()
	h := host.Bare(t, lab.Shared(t), "trixie")
	h.Join(t)
	h.Node.AddDeployment(t, "web", 2)
	h.Put(t, host.Package(t, host.Older, "deb"), "/root/nth_0.1.0-1_amd64.deb")
	top, err := cache.Top()
	if err != nil {
		t.Fatal(err)
	}
	putPrograms(t, h)
	pages, err := docs.Read(top)
	if err != nil {
		t.Fatal(err)
	}
	typed := 0
	for _, page := range inOrder(pages) {
		commands := slices.DeleteFunc(page.Commands, func(c docs.Command) bool { return c.Needs != "node" })
		typed += len(commands)
		if page.Name == upgrades {
			h.Put(t, host.Package(t, host.Newer, "deb"), "/root/nth_0.2.0-1_amd64.deb")
		}
		docs.Type(t, commands, terminal(t, h))
	}
	if typed < 30 {
		t.Errorf("only %d commands are for a node: the pages are read wrongly", typed)
	}
}

// putPrograms puts what "make build" makes into the machine.
func putPrograms(t *testing.T, h *host.Host) {
	t.Helper()
	for _, name := range []string{"nth", "nth-imds"} {
		program, err := daemon.Build(name)
		if err != nil {
			t.Fatal(err)
		}
		h.Put(t, program, filepath.Join("/root", name))
	}
}

// upgrades is the page that upgrades nth, and removes it.
const upgrades = "docs/operations.md"

// inOrder puts the page that installs nth first and the one that removes it last.
func inOrder(pages []docs.Page) []docs.Page {
	rank := map[string]int{"docs/install.md": -1, upgrades: 1}
	slices.SortStableFunc(pages, func(a, b docs.Page) int { return rank[a.Name] - rank[b.Name] })
	return pages
}

// terminal is a root shell in the machine, where nobody needs sudo. The machine shares the network with others: the
// metadata service of the drill gets a port of its own.
func terminal(t *testing.T, h *host.Host) docs.Terminal {
	t.Helper()
	address := lab.FreeAddress(t)
	prelude := `cd /root; export NTH_IMDS=http://` + address + `; sudo() { "$@"; }; `
	return func(command string) (string, int) {
		o := h.Try(t, "bash", "-c", prelude+strings.ReplaceAll(command, "127.0.0.1:1338", address))
		return o.Stdout + o.Stderr, o.Status
	}
}
