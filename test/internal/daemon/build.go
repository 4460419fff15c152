package daemon

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"github.com/nth-project/nth/test/internal/cache"
)

// Binary and QueueBinary are the paths of nth and nth-queue, built from this checkout by the first who asks.
var (
	Binary      = sync.OnceValues(func() (string, error) { return Build("nth") })
	QueueBinary = sync.OnceValues(func() (string, error) { return Build("nth-queue") })
)

// Build builds a command of the product as "make build" does, and returns the program's path. Each build has a name of its own until it is complete,
// so that two at once are safe.
func Build(command string) (string, error) {
	top, err := cache.Top()
	if err != nil {
		return "", fmt.Errorf("building %s: %w", command, err)
	}
	built, err := cache.Dir("bin")
	if err != nil {
		return "", fmt.Errorf("building %s: %w", command, err)
	}
	path := filepath.Join(built, command)
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
