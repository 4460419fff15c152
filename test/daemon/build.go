package daemon

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// compile builds a command of the product as "make build" does. Each build has a name of its own until it is complete,
// so that two at once are safe.
func compile(command string) (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/nth-project/nth").Output()
	if err != nil {
		return "", fmt.Errorf("finding the product: %w", err)
	}
	top := string(out[:len(out)-1])
	cache := filepath.Join(top, ".cache", "bin")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", fmt.Errorf("building %s: %w", command, err)
	}
	path := filepath.Join(cache, command)
	temporary := fmt.Sprintf("%s.%d", path, os.Getpid())
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", temporary, "./cmd/"+command)
	build.Dir = top
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building %s: %w\n%s", command, err, said)
	}
	if err := os.Rename(temporary, path); err != nil {
		return "", fmt.Errorf("building %s: %w", command, err)
	}
	return path, nil
}
