package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// entry is a file of a layer, a link, or without either a directory.
type entry struct {
	content []byte
	mode    int64
	link    string
}

// newLayer makes a layer of files, by their paths. The directories above them come with them.
func newLayer(files map[string]entry, made time.Time) (v1.Layer, error) {
	files = maps.Clone(files)
	for file := range maps.Clone(files) {
		for dir := path.Dir(file); dir != "."; dir = path.Dir(dir) {
			if _, ok := files[dir]; !ok {
				files[dir] = entry{mode: 0o755}
			}
		}
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(files[name].header(name, made)); err != nil {
			return nil, fmt.Errorf("packing %s: %w", name, err)
		}
		if _, err := w.Write(files[name].content); err != nil {
			return nil, fmt.Errorf("packing %s: %w", name, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("packing a layer: %w", err)
	}
	opener := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil }
	return tarball.LayerFromOpener(opener, tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(gzip.BestCompression))
}

func (e entry) header(name string, made time.Time) *tar.Header {
	header := &tar.Header{Name: name, Mode: e.mode, ModTime: made, Format: tar.FormatUSTAR}
	switch {
	case e.link != "":
		header.Typeflag, header.Linkname = tar.TypeSymlink, e.link
	case e.content != nil:
		header.Typeflag, header.Size = tar.TypeReg, int64(len(e.content))
	default:
		header.Typeflag, header.Name = tar.TypeDir, name+"/"
	}
	return header
}

// authorities are the certificate authorities of the web, as Mozilla has them, in PEM. One that may only vouch for some
// certificates is left out: a file cannot say which.
func authorities() []byte {
	var text bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // A buffer takes anything.
		}
	}
	return text.Bytes()
}

// inLayer is a path as a layer has it.
func inLayer(file string) string { return strings.TrimPrefix(path.Clean(file), "/") }
