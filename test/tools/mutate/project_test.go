package mutate_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nth-project/nth/test/tools/mutate"
)

// project is a module with one package, core, of one file and its test.
type project struct {
	t   *testing.T
	top string
}

func newProject(t *testing.T, code, tests string) project {
	t.Helper()
	p := project{t: t, top: t.TempDir()}
	p.write("go.mod", "module example.org/project\n\ngo 1.26\n")
	p.write("core/core.go", "package core\n\n"+code+"\n")
	imports := ""
	for _, name := range []string{"os", "sync", "testing", "testing/synctest", "time"} {
		if strings.Contains(tests, filepath.Base(name)+".") {
			imports += "import \"" + name + "\"\n"
		}
	}
	p.write("core/core_test.go", "package core\n\n"+imports+tests+"\n")
	return p
}

func (p project) write(name, text string) string {
	p.t.Helper()
	at := filepath.Join(p.top, name)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
		p.t.Fatal(err)
	}
	return at
}

// run judges the package's tests.
func (p project) run(cfg mutate.Config) (good bool, said string) {
	p.t.Helper()
	var out strings.Builder
	cfg.Top, cfg.Packages, cfg.Workers, cfg.Out = p.top, []string{"core"}, 2, &out
	good, err := mutate.Run(p.t.Context(), cfg)
	if err != nil {
		p.t.Fatal(err)
	}
	return good, out.String()
}

// keys lists the mutants.
func (p project) keys(cfg mutate.Config) (keys []string) {
	p.t.Helper()
	cfg.List = true
	_, said := p.run(cfg)
	for line := range strings.Lines(said) {
		if key, ok := strings.CutPrefix(line, "    "); ok {
			keys = append(keys, strings.TrimSpace(key))
		}
	}
	return keys
}
