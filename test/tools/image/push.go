package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// commandPush sends the image in a layout to a registry, under a name such as "registry.example/nth:v1". The password
// is in REGISTRY_PASSWORD, beside REGISTRY_USER, or where "docker login" has put it.
func commandPush(ctx context.Context, args []string, out io.Writer) error {
	if len(args) != 2 {
		return errUsage
	}
	image, err := name.NewTag(args[1])
	if err != nil {
		return fmt.Errorf("reading the image's name: %w", err)
	}
	index, err := onlyIndex(args[0])
	if err != nil {
		return err
	}
	if err := remote.WriteIndex(image, index, remote.WithContext(ctx), credentials()); err != nil {
		return fmt.Errorf("pushing %s: %w", image, err)
	}
	digest, err := index.Digest()
	fmt.Fprintf(out, "%s@%s\n", image, digest)
	return err
}

func credentials() remote.Option {
	if password := os.Getenv("REGISTRY_PASSWORD"); password != "" {
		return remote.WithAuth(&authn.Basic{Username: os.Getenv("REGISTRY_USER"), Password: password})
	}
	return remote.WithAuthFromKeychain(authn.DefaultKeychain)
}

// onlyIndex returns the one image that a layout has.
func onlyIndex(dir string) (v1.ImageIndex, error) {
	all, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, fmt.Errorf("reading the image in %s: %w", dir, err)
	}
	manifest, err := all.IndexManifest()
	if err != nil {
		return nil, fmt.Errorf("reading the image in %s: %w", dir, err)
	}
	if len(manifest.Manifests) != 1 {
		return nil, fmt.Errorf("reading the image in %s: it has %d images", dir, len(manifest.Manifests))
	}
	return all.ImageIndex(manifest.Manifests[0].Digest)
}
