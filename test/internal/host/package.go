package host

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

// A Version is one of two that the packages are made in, from the same source.
type Version string

// An upgrade leads from one to the other.
const (
	Older Version = "0.0.1"
	Newer Version = "0.0.2"
)

// made has the directory with the packages of each version, which the first who asks makes.
var made = map[Version]func() (string, error){
	Older: sync.OnceValues(func() (string, error) { return makePackages(Older) }),
	Newer: sync.OnceValues(func() (string, error) { return makePackages(Newer) }),
}

// Package is the path of nth's package for this architecture. family is deb or rpm.
func Package(t lab.TB, v Version, family string) string {
	t.Helper()
	return PackageOf(t, "nth", v, family)
}

// PackageOf is the path of the package of that name: nth or nth-queue.
func PackageOf(t lab.TB, name string, v Version, family string) string {
	t.Helper()
	dir, err := made[v]()
	if err != nil {
		t.Fatalf("%v", err)
	}
	found, err := filepath.Glob(filepath.Join(dir, name+`[\-_][0-9]*.`+family))
	if err != nil || len(found) != 1 {
		t.Fatalf("looking for the %s of %s, version %s: found %q", family, name, v, found)
	}
	return found[0]
}

// makePackages makes the packages as "make package" does, but for this architecture alone. They appear under their names
// when they are complete, so that two test binaries may make them at once.
func makePackages(v Version) (string, error) {
	top, err := cache.Top()
	if err != nil {
		return "", err
	}
	dir, err := cache.Dir(filepath.Join("packages", string(v)))
	if err != nil {
		return "", err
	}
	scratch, err := os.MkdirTemp(dir, "making-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(scratch)
	command := exec.Command(filepath.Join(top, "packaging", "build"), scratch, string(v), runtime.GOARCH)
	if said, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("making the packages of version %s: %w\n%s", v, err, said)
	}
	files, err := os.ReadDir(scratch)
	for _, file := range files {
		err = errors.Join(err, os.Rename(filepath.Join(scratch, file.Name()), filepath.Join(dir, file.Name())))
	}
	return dir, err
}
