// Package release judges a release: that it is whole, and that a second build of it has the same bytes.
package release

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/nth-project/nth/test/internal/apt"
	"github.com/nth-project/nth/test/internal/cache"
)

const version = "9.8.7"

// all is the variable that has everything compiled again for the second release, by a compiler with an empty cache.
const all = "NTH_NIGHTLY"

func TestWhoeverMakesAReleaseAgainGetsTheSameBytes(t *testing.T) {
	made := files(t, build(t, checkout(t, "one"), "SIGN="))
	signer := filepath.Join(t.TempDir(), "signer")
	if err := os.WriteFile(signer, []byte("#!/bin/sh\necho \"$1 by $2\" >\"$2.asc\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	env := []string{"TZ=Asia/Tokyo", "LC_ALL=C", "USER=somebody", "SIGN=" + signer + " key"}
	if os.Getenv(all) == "" {
		t.Log(`the second release takes from Go's cache what the first has compiled: "make release-check" compiles it again`)
	} else {
		env = append(env, "GOCACHE="+t.TempDir())
	}
	again := files(t, build(t, checkout(t, "another/folder with a longer name"), env...))

	t.Run("with signatures of its checksums and of its provenance", func(t *testing.T) {
		for signature, name := range map[string]string{
			"SHA256SUMS.asc": "SHA256SUMS", "provenance.json.asc": "provenance.json",
			"Release.gpg": "Release", "repodata/repomd.xml.asc": "repodata/repomd.xml",
		} {
			if got, want := string(again[signature]), "key by "+name+"\n"; got != want {
				t.Errorf("the signature of %s is %q, want %q", name, got, want)
			}
			delete(again, signature)
		}
	})
	t.Run("in all files", func(t *testing.T) {
		for _, name := range slices.Sorted(maps.Keys(made)) {
			if !bytes.Equal(made[name], again[name]) {
				t.Errorf("%s has %d bytes in one release and %d in the other, and they are not the same", name, len(made[name]), len(again[name]))
			}
		}
		if len(made) != len(again) {
			t.Errorf("there are %q, then %q", slices.Sorted(maps.Keys(made)), slices.Sorted(maps.Keys(again)))
		}
	})
	t.Run("of which none is missing", func(t *testing.T) { mustBeWhole(t, made) })
}

// mustBeWhole fails the test unless all is there that the page on releases promises.
func mustBeWhole(t *testing.T, made map[string][]byte) {
	arch := runtime.GOARCH
	rpm := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[arch]
	want := []string{
		"SHA256SUMS", "provenance.json", "Packages", "Packages.gz", "Release",
		"repodata/repomd.xml", "repodata/primary.xml.gz", "repodata/filelists.xml.gz", "repodata/other.xml.gz", "nth-image_" + version + ".tar.gz", "nth-queue-image_" + version + ".tar.gz",
		"nth_" + version + "_linux_" + arch + ".tar.gz",
		"nth_" + version + "-1_" + arch + ".deb", "nth-queue_" + version + "-1_" + arch + ".deb",
		"nth-" + version + "-1." + rpm + ".rpm", "nth-queue-" + version + "-1." + rpm + ".rpm",
	}
	for _, program := range []string{"nth", "nth-queue", "nth-imds"} {
		want = append(want, program+"_"+version+"_linux_"+arch+".spdx.json")
	}
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(made)); !slices.Equal(got, want) {
		t.Errorf("there is %q\nwant     %q", got, want)
	}
	var sums strings.Builder
	for _, name := range slices.Sorted(maps.Keys(made)) {
		if name != "SHA256SUMS" {
			fmt.Fprintf(&sums, "%x  %s\n", sha256.Sum256(made[name]), name)
		}
	}
	if got := string(made["SHA256SUMS"]); got != sums.String() {
		t.Errorf("SHA256SUMS is\n%swant\n%s", got, &sums)
	}
}

func TestNothingOfAnOlderReleaseBecomesPartOfOne(t *testing.T) {
	tree := checkout(t, "tree")
	older := filepath.Join(tree, "dist", "nth_1.0.0-1_amd64.deb")
	if err := os.MkdirAll(filepath.Dir(older), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(older, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	said, err := release(t, tree).CombinedOutput()
	if err == nil || !strings.Contains(string(said), "is not empty: what lies there would become part of the release") {
		t.Errorf("it says %q, %v", said, err)
	}
}

// release is the command that makes a release of this architecture in dist/ of a tree.
func release(t *testing.T, tree string, env ...string) *exec.Cmd {
	t.Helper()
	c := exec.CommandContext(t.Context(), filepath.Join(tree, "packaging", "release"), filepath.Join(tree, "dist"), version, runtime.GOARCH)
	c.Dir, c.Env = t.TempDir(), append(os.Environ(), env...)
	return c
}

// build makes one, and returns where.
func build(t *testing.T, tree string, env ...string) string {
	t.Helper()
	if err := apt.Install(t.Context(), map[string]string{"apt-ftparchive": "apt-utils", "createrepo_c": "createrepo-c"}, t.Logf); err != nil {
		t.Fatal(err)
	}
	if said, err := release(t, tree, env...).CombinedOutput(); err != nil {
		t.Fatalf("making a release: %v\n%s", err, said)
	}
	return filepath.Join(tree, "dist")
}

// checkout is a copy of the project as it is in the working directory, with its history.
func checkout(t *testing.T, name string) string {
	t.Helper()
	top, err := cache.Top()
	if err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), name)
	run := func(script string) {
		t.Helper()
		c := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", script, "bash", top, to)
		if said, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", script, err, said)
		}
	}
	run(`git clone --quiet --shared "$1" "$2"`)
	run(`cd "$2" && git ls-files -z | xargs -0 rm -f`)
	run(`cd "$1" && git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d "" f; do [ ! -e "$f" ] || printf "%s\0" "$f"; done |
		tar --null --files-from=- -cf - | tar -C "$2" -xf -`)
	return to
}

// files are the contents of the files in a directory and below.
func files(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			all[path], err = os.ReadFile(filepath.Join(dir, path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
