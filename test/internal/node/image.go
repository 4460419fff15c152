package node

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"

	"github.com/nth-project/nth/test/internal/cache"
)

// Image is what every container of a node runs, and pauseImage holds its pods together. They are one program, and are
// pulled from nowhere.
const (
	Image      = "nth.test/container:1"
	pauseImage = "nth.test/pause:1"
)

// program is where the image has it.
const program = "container"

type object = map[string]any

// scratch is where what the nodes of a test share is made. Main removes it.
var scratch = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "nth-node-")
	if err == nil {
		remove = func() { _ = os.RemoveAll(dir) }
	}
	return dir, err
})

var remove = func() {}

// image is the archive with the images, which the first who asks makes.
var image = sync.OnceValues(func() (string, error) {
	dir, err := scratch()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "images.tar")
	if err := makeImages(dir, path); err != nil {
		return "", fmt.Errorf("making the images: %w", err)
	}
	return path, nil
})

// build builds one of the programs beside this file.
func build(program, path string) error {
	top, err := cache.Top()
	if err != nil {
		return err
	}
	command := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, "./internal/node/"+program)
	command.Dir = filepath.Join(top, "test")
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("building the program %s: %w\n%s", program, err, said)
	}
	return nil
}

// makeImages builds the program and writes an OCI image layout with it, under both names.
func makeImages(dir, path string) error {
	built := filepath.Join(dir, program)
	if err := build(program, built); err != nil {
		return err
	}
	code, err := os.ReadFile(built)
	if err != nil {
		return err
	}
	layer, err := archive([]file{{program, 0o755, code}})
	if err != nil {
		return err
	}
	files, err := layout(layer)
	if err != nil {
		return err
	}
	text, err := archive(files)
	return errors.Join(err, os.WriteFile(path, text, 0o644))
}

// A file is one of an archive.
type file struct {
	name string
	mode int64
	text []byte
}

func archive(files []file) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.text))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.text); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), w.Close()
}

// layout is the files of an image layout whose images have this layer.
func layout(layer []byte) ([]file, error) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, err := w.Write(layer)
	if err := errors.Join(err, w.Close()); err != nil {
		return nil, err
	}
	files := []file{{"oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`)}}
	add := func(kind string, text []byte) object {
		sum := fmt.Sprintf("%x", sha256.Sum256(text))
		files = append(files, file{"blobs/sha256/" + sum, 0o644, text})
		return object{"mediaType": "application/vnd.oci.image." + kind, "digest": "sha256:" + sum, "size": len(text)}
	}
	config := add("config.v1+json", encode(object{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": object{"Entrypoint": []string{"/" + program}},
		"rootfs": object{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
	}))
	manifest := encode(object{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": config, "layers": []object{add("layer.v1.tar+gzip", packed.Bytes())},
	})
	of := add("manifest.v1+json", manifest)
	var images []object
	for _, name := range []string{Image, pauseImage} {
		images = append(images, object{
			"mediaType": of["mediaType"], "digest": of["digest"], "size": of["size"],
			"annotations": object{"io.containerd.image.name": name},
		})
	}
	return append(files, file{"index.json", 0o644, encode(object{"schemaVersion": 2, "manifests": images})}), nil
}

// encode is JSON of what this file makes, which always has some.
func encode(value object) []byte {
	text, _ := json.Marshal(value)
	return text
}
