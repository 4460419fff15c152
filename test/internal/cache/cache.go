// Package cache keeps in the project's .cache what tests need and what takes long to make. It is made once, also where
// several test binaries ask for it at the same time.
package cache

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// Top is the project's top directory: the nearest at or above the working directory that has test/tools in it. Tests run
// in their package's directory, commands mostly at the top or in test/.
func Top() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding the top of the project: %w", err)
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		_, err := os.Stat(filepath.Join(dir, "test", "tools", "kubernetes", "go.mod"))
		if err == nil {
			return dir, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("finding the top of the project: %w", err)
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("finding the top of the project: %q is not inside it", start)
		}
	}
}

// Dir returns a directory of the cache, and makes it if it is not there.
func Dir(name string) (string, error) {
	top, err := Top()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(top, ".cache", name)
	return dir, os.MkdirAll(dir, 0o755)
}

// Make lets build make what belongs at path, unless it is there: complete or not at all. While somebody else makes it, Make
// waits until they are done, and calls waiting once.
func Make(ctx context.Context, path string, waiting func(), build func() error) error {
	if exists(path) {
		return nil
	}
	unlock, err := lock(ctx, path+".lock", waiting)
	if err != nil {
		return err
	}
	defer unlock()
	if exists(path) {
		return nil
	}
	return build()
}

// lock takes the lock file at path, and calls waiting once if it is held. The kernel drops the lock with its process, so
// that one that is killed leaves none behind.
func lock(ctx context.Context, path string, waiting func()) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for first := true; ; first = false {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { file.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			file.Close()
			return nil, fmt.Errorf("locking %q: %w", path, err)
		}
		if first {
			waiting()
		}
		select {
		case <-ctx.Done():
			file.Close()
			return nil, context.Cause(ctx)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
