package bottlerocket

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/nth-project/nth/test/internal/cache"
	"github.com/nth-project/nth/test/internal/lab"
)

// An Image is an OCI image layout, as bottlerocket/build writes it.
type Image struct{ Dir string }

// descriptor is what an index or a manifest says of something else.
type descriptor struct {
	Digest   string
	Platform struct{ Architecture string }
}

// Config is what an image says about how it is run.
type Config struct {
	Entrypoint, Cmd, Env []string
	StopSignal           string
}

// made is the image of this checkout, which the first who asks makes. Main removes it.
var made = sync.OnceValues(func() (Image, error) {
	dir, err := os.MkdirTemp("", "nth-image-")
	if err != nil {
		return Image{}, err
	}
	remove = func() { _ = os.RemoveAll(dir) }
	return Make(dir)
})

// Make makes the image of this checkout, for this architecture, in a directory.
func Make(dir string) (Image, error) {
	top, err := cache.Top()
	if err != nil {
		return Image{}, err
	}
	build := exec.Command(filepath.Join(top, "bottlerocket", "build"), dir, "0.0.1", runtime.GOARCH)
	if said, err := build.CombinedOutput(); err != nil {
		return Image{}, fmt.Errorf("making the image: %w\n%s", err, said)
	}
	return Image{Dir: dir}, nil
}

var remove = func() {}

// Main runs the tests of a package that uses hosts, and then removes what they shared.
func Main(m *testing.M, sideBySide int) int {
	defer func() { remove() }()
	return lab.Main(m, sideBySide)
}

// blob reads JSON by its digest.
func (i Image) blob(digest string, into any) error {
	text, err := os.ReadFile(i.path(digest))
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}

func (i Image) path(digest string) string {
	return filepath.Join(i.Dir, "blobs", strings.Replace(digest, ":", "/", 1))
}

// Unpack writes the files of the image for this architecture to a directory, as a container engine does, and returns how
// it is run.
func (i Image) Unpack(dir string) (Config, error) {
	var layout, index struct{ Manifests []descriptor }
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	var config struct{ Config Config }
	text, err := os.ReadFile(filepath.Join(i.Dir, "index.json"))
	if err == nil {
		err = json.Unmarshal(text, &layout)
	}
	if err != nil || len(layout.Manifests) != 1 {
		return Config{}, fmt.Errorf("reading the image's layout: %d images, %w", len(layout.Manifests), err)
	}
	if err := i.blob(layout.Manifests[0].Digest, &index); err != nil {
		return Config{}, err
	}
	for _, image := range index.Manifests {
		if image.Platform.Architecture == runtime.GOARCH {
			err = errors.Join(i.blob(image.Digest, &manifest), i.blob(manifest.Config.Digest, &config))
		}
	}
	for _, layer := range manifest.Layers {
		err = errors.Join(err, i.unpackLayer(layer.Digest, dir))
	}
	return config.Config, err
}

func (i Image) unpackLayer(digest, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if said, err := exec.Command("tar", "--extract", "--gzip", "--same-permissions", "--no-same-owner", "--file", i.path(digest), "--directory", dir).CombinedOutput(); err != nil {
		return fmt.Errorf("unpacking %s: %w\n%s", digest, err, said)
	}
	return nil
}
