package node

import (
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

// Image is what every container of a node runs, and its containerd.toml has the name by which it holds pods together. It is pulled from
// nowhere.
const Image = "nth.test/container:1"

// image is the archive with the image, which the first who asks makes.
var image = sync.OnceValues(func() (string, error) {
	dir, first := lab.Scratch()
	top, second := cache.Top()
	if err := errors.Join(first, second); err != nil {
		return "", err
	}
	build := exec.Command("sh", "-euc", `
		(cd test && go build -trimpath -ldflags="-s -w" -o "$0/container" ./internal/node/container)
		go -C test/tools/image run . build --output "$0/layout" --name container --tag "$2" "$1=$0/container"
		tar -C "$0/layout" -cf "$0/image.tar" .`, dir, runtime.GOARCH, "1")
	build.Dir, build.Env = top, append(os.Environ(), "CGO_ENABLED=0", "SOURCE_DATE_EPOCH=0")
	if said, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("making the image: %w\n%s", err, said)
	}
	return filepath.Join(dir, "image.tar"), nil
})
