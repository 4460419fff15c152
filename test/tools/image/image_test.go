package main

import (
	"archive/tar"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"maps"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// The two sorts of images that there are.
var (
	hostContainer = sort{
		flags: []string{"--name", "nth", "--host-container"}, runs: []string{"/usr/bin/nth", "run"},
		environment: []string{"SSL_CERT_DIR=/.bottlerocket/rootfs/etc/pki/tls/certs"},
		files:       map[string]string{"usr/bin/nth": "", "var/": "", "var/lib/": "", "var/lib/kubelet": "/.bottlerocket/rootfs/var/lib/kubelet"},
	}
	inPod = sort{
		flags: []string{"--name", "nth-queue", "--user", "65532:65532"}, runs: []string{"/usr/bin/nth-queue", "run"}, user: "65532:65532",
		files: map[string]string{"usr/bin/nth-queue": ""},
	}
)

// sort is a sort of image: how it is asked for, and what it has beyond the others.
type sort struct {
	flags, runs, environment []string
	user                     string
	files                    map[string]string
}

// build makes an image of two small programs, and returns the layout's directory and what was said.
func (s sort) build(t *testing.T) (dir, said string) {
	t.Helper()
	t.Setenv("SOURCE_DATE_EPOCH", "1700000000")
	from, dir := t.TempDir(), filepath.Join(t.TempDir(), "image")
	args := append([]string{"build", "--output", dir, "--tag", "v1", "--label", "org.opencontainers.image.version=1.0.0"}, s.flags...)
	for _, file := range []string{"LICENSE", "amd64", "arm64"} {
		path := filepath.Join(from, file)
		if err := os.WriteFile(path, []byte("this is "+file), 0o600); err != nil {
			t.Fatal(err)
		}
		if file == "LICENSE" {
			args = append(args, "--file", "/usr/share/doc/nth/LICENSE="+path)
		} else {
			args = append(args, file+"="+path)
		}
	}
	var out strings.Builder
	if err := run(t.Context(), args, &out); err != nil {
		t.Fatal(err)
	}
	return dir, out.String()
}

func TestImage_IsWhatItsContainerIsMadeOf(t *testing.T) {
	for name, s := range map[string]sort{"a host container": hostContainer, "a pod": inPod} {
		t.Run(name, s.mustBeMade)
	}
}

func (s sort) mustBeMade(t *testing.T) {
	t.Helper()
	dir, _ := s.build(t)
	index, err := onlyIndex(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	if mediaType, err := index.MediaType(); err != nil || mediaType != types.OCIImageIndex {
		t.Errorf("the index is a %s, %v", mediaType, err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var platforms []string
	for _, descriptor := range manifest.Manifests {
		platforms = append(platforms, descriptor.Platform.String())
		image, err := index.Image(descriptor.Digest)
		if err != nil {
			t.Fatal(err)
		}
		s.inspect(t, image, descriptor.Platform.Architecture)
	}
	if !slices.Equal(platforms, []string{"linux/amd64", "linux/arm64"}) {
		t.Errorf("platforms: %q", platforms)
	}
}

// inspect judges the image for one architecture.
func (s sort) inspect(t *testing.T, image v1.Image, arch string) {
	t.Helper()
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if got := slices.Concat(config.Config.Entrypoint, config.Config.Cmd); !slices.Equal(got, s.runs) || config.Config.User != s.user {
		t.Errorf("it runs %q as %q", got, config.Config.User)
	}
	if got := config.Config.Env[1:]; !slices.Equal(got, s.environment) {
		t.Errorf("beside the path, its environment has %q", got)
	}
	if config.Architecture != arch || config.Config.Labels["org.opencontainers.image.version"] != "1.0.0" {
		t.Errorf("for %s, labels %v", config.Architecture, config.Config.Labels)
	}
	want := map[string]string{
		"etc/": "", "etc/ssl/": "", "etc/ssl/certs/": "", "etc/ssl/certs/ca-certificates.crt": "", "tmp/": "", "usr/": "", "usr/bin/": "",
		"usr/share/": "", "usr/share/doc/": "", "usr/share/doc/nth/": "", "usr/share/doc/nth/LICENSE": "this is LICENSE",
	}
	maps.Copy(want, s.files)
	want[s.runs[0][1:]] = "this is " + arch
	got := content(t, image)
	if !x509.NewCertPool().AppendCertsFromPEM([]byte(got["etc/ssl/certs/ca-certificates.crt"])) {
		t.Error("there are no certificate authorities")
	}
	got["etc/ssl/certs/ca-certificates.crt"] = ""
	if !maps.Equal(got, want) {
		t.Errorf("files:\n%q, want\n%q", got, want)
	}
}

// content returns the files of an image by their names.
func content(t *testing.T, image v1.Image) map[string]string {
	t.Helper()
	layers, err := image.Layers()
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, layer := range layers {
		unpacked, err := layer.Uncompressed()
		if err != nil {
			t.Fatal(err)
		}
		archive := tar.NewReader(unpacked)
		for {
			header, err := archive.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(archive)
			if err != nil {
				t.Fatal(err)
			}
			files[header.Name] = string(text) + header.Linkname
		}
	}
	return files
}

func TestImage_IsPushedToARegistry(t *testing.T) {
	dir, built := hostContainer.build(t)
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	address := strings.TrimPrefix(server.URL, "http://") + "/infra/nth:v1"
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	var out strings.Builder
	if err := run(t.Context(), []string{"push", dir, address}, &out); err != nil {
		t.Fatal(err)
	}
	pushed, err := name.ParseReference(strings.TrimSpace(out.String()))
	if err != nil {
		t.Fatal(err)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		image, err := remote.Image(pushed, remote.WithPlatform(v1.Platform{OS: "linux", Architecture: arch}))
		if err != nil {
			t.Fatal(err)
		}
		hostContainer.inspect(t, image, arch)
	}
	if _, digest, _ := strings.Cut(pushed.String(), "@"); !strings.Contains(built, "v1\t"+digest) {
		t.Errorf("pushed %s, built\n%s", digest, built)
	}
}
