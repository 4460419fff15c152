package tools

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// install fetches the suite with npm, as its lock file pins it. No script of a package is run. The programs are links to
// files below node_modules, where they find what they need.
func (s suite) install(ctx context.Context, top, into string, out io.Writer) error {
	npm, err := findNPM(ctx, out)
	if err != nil {
		return fmt.Errorf("fetching %s: %w (Debian has it in the package npm)", s, err)
	}
	for _, file := range s.pins() {
		text, err := os.ReadFile(filepath.Join(s.source(top), file))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(into, file), text, 0o644); err != nil {
			return err
		}
	}
	began := time.Now()
	fmt.Fprintf(out, "fetching %s (about 60 MB)\n", s)
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

// findNPM returns where npm is, and installs it first where it is missing and there is apt-get.
func findNPM(ctx context.Context, out io.Writer) (string, error) {
	npm, missing := exec.LookPath("npm")
	if missing == nil {
		return npm, nil
	}
	apt, err := exec.LookPath("apt-get")
	if err != nil {
		return "", missing
	}
	fmt.Fprintln(out, "installing npm on this host (about a minute)")
	for _, args := range [][]string{{"update"}, {"install", "-y", "--no-install-recommends", "npm"}} {
		install := exec.CommandContext(ctx, apt, append([]string{"-qq", "-o", "DPkg::Lock::Timeout=120"}, args...)...)
		install.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if said, err := install.CombinedOutput(); err != nil {
			return "", fmt.Errorf("installing npm: %w\n%s", err, said)
		}
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
