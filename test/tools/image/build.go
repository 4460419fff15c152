package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	// programs is where the program is in the image, and authoritiesFile where Go's TLS looks for authorities first.
	programs        = "usr/bin/"
	authoritiesFile = "etc/ssl/certs/ca-certificates.crt"
	// host is where a superpowered host container sees the host's file system. hostAuthorities have what "settings.pki"
	// adds.
	host            = "/.bottlerocket/rootfs"
	hostAuthorities = host + "/etc/pki/tls/certs"
	// kubeletFiles are at the same place as on the host: a kubelet's certificate is a link to one of them, by its whole
	// path.
	kubeletFiles = "var/lib/kubelet"
)

// tagAnnotation names an image within a layout.
const tagAnnotation = "org.opencontainers.image.ref.name"

// description is what an image is made of.
type description struct {
	name string // the program's
	// hostContainer tells that it is for a host container of Bottlerocket.
	hostContainer bool
	user          string // as "65532:65532"; "" is root

	tag      string
	labels   map[string]string
	files    map[string]string // by their paths in the image
	programs map[string]string // by their architectures
	made     time.Time
}

// sourceDate reads SOURCE_DATE_EPOCH, which every time in the image is.
func sourceDate(text string) (time.Time, error) {
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("reading SOURCE_DATE_EPOCH: %q are no seconds", text)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// write makes the image and writes it as a layout, in place of what is there.
func (d description) write(dir string, out io.Writer) error {
	index, err := d.index(out)
	if err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("clearing %s: %w", dir, err)
	}
	to, err := layout.Write(dir, empty.Index)
	if err != nil {
		return fmt.Errorf("writing the image to %s: %w", dir, err)
	}
	if err := to.AppendIndex(index, layout.WithAnnotations(map[string]string{tagAnnotation: d.tag})); err != nil {
		return fmt.Errorf("writing the image to %s: %w", dir, err)
	}
	digest, err := index.Digest()
	fmt.Fprintf(out, "%s\t%s\n", d.tag, digest)
	return err
}

// index makes the images of all architectures, and the index of them.
func (d description) index(out io.Writer) (v1.ImageIndex, error) {
	common, err := d.common()
	if err != nil {
		return nil, err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range slices.Sorted(maps.Keys(d.programs)) {
		image, err := d.image(arch, common)
		if err != nil {
			return nil, fmt.Errorf("making the image for %s: %w", arch, err)
		}
		platform := &v1.Platform{OS: "linux", Architecture: arch}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: platform}})
		if err := tell(out, arch, image); err != nil {
			return nil, err
		}
	}
	if len(d.labels) == 0 {
		return index, nil
	}
	annotated, _ := mutate.Annotations(index, d.labels).(v1.ImageIndex) // It is what it was.
	return annotated, nil
}

// tell says how large an image is and by what it is known.
func tell(out io.Writer, arch string, image v1.Image) error {
	manifest, err := image.Manifest()
	if err != nil {
		return err
	}
	digest, err := image.Digest()
	if err != nil {
		return err
	}
	var size int64
	for _, layer := range manifest.Layers {
		size += layer.Size
	}
	_, err = fmt.Fprintf(out, "linux/%s\t%s\t%d bytes\n", arch, digest, size)
	return err
}

// common makes the layer that all architectures share.
func (d description) common() (v1.Layer, error) {
	files := map[string]entry{
		authoritiesFile: {content: authorities(), mode: 0o644},
		"tmp":           {mode: 0o1777},
	}
	if d.hostContainer {
		files[kubeletFiles] = entry{link: host + "/" + kubeletFiles, mode: 0o777}
	}
	for file, source := range d.files {
		content, err := os.ReadFile(source)
		if err != nil {
			return nil, err
		}
		files[inLayer(file)] = entry{content: content, mode: 0o644}
	}
	return newLayer(files, d.made)
}

// image makes the image for one architecture.
func (d description) image(arch string, common v1.Layer) (v1.Image, error) {
	text, err := os.ReadFile(d.programs[arch])
	if err != nil {
		return nil, err
	}
	program, err := newLayer(map[string]entry{programs + d.name: {content: text, mode: 0o755}}, d.made)
	if err != nil {
		return nil, err
	}
	environment := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	if d.hostContainer {
		environment = append(environment, "SSL_CERT_DIR="+hostAuthorities) // Beside the file, and it need not be there.
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	made := v1.Time{Time: d.made}
	image, err = mutate.ConfigFile(image, &v1.ConfigFile{
		OS: "linux", Architecture: arch, Created: made, RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			User: d.user, Entrypoint: []string{"/" + programs + d.name}, Cmd: []string{"run"}, StopSignal: "SIGTERM", WorkingDir: "/",
			Env: environment, Labels: d.labels,
		},
	})
	if err != nil {
		return nil, err
	}
	return mutate.Append(image,
		mutate.Addendum{Layer: common, History: v1.History{Created: made, CreatedBy: "certificate authorities and licenses"}},
		mutate.Addendum{Layer: program, History: v1.History{Created: made, CreatedBy: d.name}})
}
