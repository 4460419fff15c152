package notify

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// What people name for the webhook to read can be anything and lie anywhere: a pipe that nobody writes to, a device, a disk of another
// machine that is gone. None of it may hold nth up or eat its memory: only a file is read, no more of it than can be meant, and it is waited for
// no longer than readTime.
const (
	readTime = 2 * time.Second
	// longestSecret bounds, in bytes, the files with the URL and the headers, longestTemplate a template, and longestTrust the
	// certificates to trust: those of a whole system are a quarter of a mebibyte.
	longestSecret   = 64 << 10
	longestTemplate = 128 << 10
	longestTrust    = 4 << 20
)

// underWay has by its path each file that is being read. One that hangs holds a thread, so it is asked for no second time.
var underWay sync.Map

// reading is one attempt to read a file.
type reading struct{ since time.Time }

// openFile opens a file. Tests have one that hangs.
var openFile = os.Open

// ReadTemplate reads the file of a template, which must not be empty. The error names the file.
func ReadTemplate(path string) (string, error) {
	text, err := readFile(path, longestTemplate)
	if err == nil && text == "" {
		err = fmt.Errorf("%s is empty", path)
	}
	return text, err
}

// readFile reads a file of no more than longest bytes. The error names the file, and nothing of what is in it.
func readFile(path string, longest int64) (string, error) {
	type result struct {
		text string
		err  error
	}
	this := &reading{time.Now()}
	if other, there := underWay.LoadOrStore(path, this); there && time.Since(other.(*reading).since) >= readTime {
		return "", fmt.Errorf("%s: an earlier attempt to read it hangs", path)
	}
	done := make(chan result, 1)
	go func() {
		text, err := readAtOnce(path, longest)
		underWay.CompareAndDelete(path, this)
		done <- result{text, err}
	}()
	limit := time.NewTimer(readTime)
	defer limit.Stop()
	select {
	case r := <-done:
		return r.text, r.err
	case <-limit.C:
	}
	select {
	case r := <-done: // It is this process that was slow.
		return r.text, r.err
	default:
		return "", fmt.Errorf("%s: it could not be read within %s", path, readTime)
	}
}

// readAtOnce reads a file, for as long as that takes.
func readAtOnce(path string, longest int64) (string, error) {
	switch found, err := os.Stat(path); {
	case err != nil:
		return "", err
	case !found.Mode().IsRegular():
		return "", fmt.Errorf("%s is not a file", path)
	}
	file, err := openFile(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }() // Nothing was written.
	content, err := io.ReadAll(io.LimitReader(file, longest+1))
	if err == nil && int64(len(content)) > longest {
		err = fmt.Errorf("%s is longer than %d bytes", path, longest)
	}
	return string(content), err
}
