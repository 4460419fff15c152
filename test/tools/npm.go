package tools

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/nth-project/nth/test/internal/apt"
)

// install fetches the suite with npm, as its lock file pins it. No script of a package is run. The programs are links to
// files below node_modules, where they find what they need.
func (s suite) install(ctx context.Context, top, into string, out io.Writer) error {
	npm, err := findNPM(ctx, out)
	if err != nil {
		return fmt.Errorf("fetching %s: %w (Debian has it in the package npm)", s, err)
	}
	for _, file := range s.pins() {
		text, err := os.ReadFile(filepath.Join(s.directory(top), file))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(into, file), text, 0o644); err != nil {
			return err
		}
	}
	began := time.Now()
	fmt.Fprintf(out, "fetching %s\n", s)
	fetch := exec.CommandContext(ctx, npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
	fetch.Dir = into
	fetch.Cancel = func() error { return fetch.Process.Signal(os.Interrupt) }
	if said, err := fetch.CombinedOutput(); err != nil {
		return fmt.Errorf("running npm ci: %w\n%s", err, said)
	}
	for _, p := range s.programs {
		if err := os.Symlink(p.made, filepath.Join(into, p.name)); err != nil {
			return err
		}
		if _, err := os.Stat(filepath.Join(into, p.name)); err != nil {
			return fmt.Errorf("looking for %s: %w", p.name, err)
		}
	}
	fmt.Fprintf(out, "  %-24s %4.0f s\n", s.name, time.Since(began).Seconds())
	return nil
}

// findNPM returns where npm is, and installs it first where it is missing.
func findNPM(ctx context.Context, out io.Writer) (string, error) {
	tell := func(format string, args ...any) { fmt.Fprintf(out, format+"\n", args...) }
	if err := apt.Install(ctx, map[string]string{"npm": "npm"}, tell); err != nil {
		return "", err
	}
	return exec.LookPath("npm")
}

// nodeJS is the name of the npm package that has Node.js for this machine.
func nodeJS(architecture string) string {
	if architecture == "amd64" {
		architecture = "x64"
	}
	return "node-linux-" + architecture
}
