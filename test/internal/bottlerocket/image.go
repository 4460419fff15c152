package bottlerocket

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"

	"github.com/nth-project/nth/test/internal/cache"
	"github.com/nth-project/nth/test/internal/lab"
)

// made is the directory with the image of this checkout, an OCI image layout, which the first who asks makes.
var made = sync.OnceValues(func() (string, error) {
	scratch, first := lab.Scratch()
	top, second := cache.Top()
	if err := errors.Join(first, second); err != nil {
		return "", err
	}
	dir := filepath.Join(scratch, "image")
	build := exec.Command(filepath.Join(top, "bottlerocket", "build"), dir, "0.0.1", runtime.GOARCH)
	if said, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("making the image: %w\n%s", err, said)
	}
	return dir, nil
})

// config is what an image says about how it is run.
type config struct{ Entrypoint, Cmd, Env []string }

// unpack writes the files of an image to a directory, as a container engine does, and returns how it is run. The image is of one
// architecture, and its layers have no file in common: their sequence does not matter.
func unpack(image, dir string) (runs config, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return runs, err
	}
	blobs, err := filepath.Glob(filepath.Join(image, "blobs", "sha256", "*"))
	for _, blob := range blobs {
		text, err := os.ReadFile(blob)
		if err != nil {
			return runs, err
		}
		var described struct{ Config config }
		if json.Unmarshal(text, &described) == nil { // an index or a manifest has no entry point
			if described.Config.Entrypoint != nil {
				runs = described.Config
			}
			continue
		}
		layer := exec.Command("tar", "--extract", "--gzip", "--same-permissions", "--no-same-owner", "--file", blob, "--directory", dir)
		if said, err := layer.CombinedOutput(); err != nil {
			return runs, fmt.Errorf("unpacking %s: %w\n%s", blob, err, said)
		}
	}
	return runs, err
}
