package notify_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nth-project/nth/pkg/notify"
)

// unreadable are paths of what is there and cannot be read, with what is said of each.
func unreadable(t *testing.T) map[string]string {
	t.Helper()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := syscall.Mkfifo(at("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(at("pipe"), at("link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(at("loop"), at("loop")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(at("huge"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(at("huge"), 1<<40); err != nil { // It is all hole.
		t.Fatal(err)
	}
	found := map[string]string{
		"/dev/zero": "is not a file", dir: "is not a file", at("pipe"): "is not a file", at("link"): "is not a file",
		at("huge"): "is longer than", at("loop"): "too many levels", at("none"): "no such file", at("none/below"): "no such file",
	}
	if os.Getuid() > 0 {
		if err := os.WriteFile(at("closed"), nil, 0); err != nil {
			t.Fatal(err)
		}
		found[at("closed")] = "permission denied"
	}
	return found
}

// A pipe that nobody writes to hangs whoever opens it, and what is endless or huge fills the memory of whoever reads it.
func TestWhatIsNoFileToReadIsAFaultAndNothingWaitsForIt(t *testing.T) {
	for path, want := range unreadable(t) {
		mustSay := func(what string, err error) {
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
				t.Errorf("%s of %s: %v, want that it %s", what, path, err, want)
			}
		}
		for what, change := range map[string]func(*notify.Destination){
			"the address":      func(d *notify.Destination) { d.URL, d.URLFile = "", path },
			"the headers":      func(d *notify.Destination) { d.HeadersFile = path },
			"the certificates": func(d *notify.Destination) { d.CAFile = path },
		} {
			d := to("http://127.0.0.1:1")
			change(&d)
			mustSay(what, errors.Join(faults(d)...))
			mustSay(what, d.Post(t.Context(), "1", "a"))
			if d.URL != "" {
				d.URL = "" // It may be known in the service only.
				mustSay(what+" without an address", errors.Join(faults(d)...))
			}
		}
		_, err := notify.ReadTemplate(path)
		mustSay("the template", err)
	}
}

func TestAnEmptyTemplateIsAFault(t *testing.T) {
	if _, err := notify.ReadTemplate(file(t, "")); err == nil || !strings.Contains(err.Error(), "is empty") {
		t.Error(err)
	}
	if got, err := notify.ReadTemplate(file(t, "a")); err != nil || got != "a" {
		t.Errorf("%q, %v", got, err)
	}
}

// The disk of another machine may be gone, and a thread of whoever reads from it hangs until it is back.
func TestAFileThatHangsIsWaitedForForAMomentAndAskedForOnce(t *testing.T) {
	path := file(t, "http://127.0.0.1:1")
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		back := make(chan struct{})
		defer notify.OpenWith(func(path string) (*os.File, error) {
			asked.Add(1)
			<-back
			return os.Open(path)
		})()
		d := notify.Destination{URLFile: path, Timeout: time.Second}
		began := time.Now()
		if err := errors.Join(faults(d)...); err == nil || !strings.Contains(err.Error(), path+": it could not be read within 2s") {
			t.Errorf("judged as %v", err)
		}
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("judging took %s", took)
		}
		for range 100 {
			if err := errors.Join(faults(d)...); err == nil || !strings.Contains(err.Error(), path+": an earlier attempt to read it hangs") {
				t.Fatalf("judged as %v", err)
			}
		}
		if took := time.Since(began); took != 2*time.Second || asked.Load() != 1 {
			t.Errorf("all judging took %s, and the file was opened %d times", took, asked.Load())
		}
		close(back)
		synctest.Wait()
		if err := faults(d); len(err) > 0 {
			t.Errorf("once it is back: %v", err)
		}
	})
}

// All that can hang does.
func TestADestinationIsJudgedWithinAMomentWhateverHangs(t *testing.T) {
	url, headers, ca := file(t, "http://127.0.0.1:1"), file(t, "A: b"), file(t, "c")
	synctest.Test(t, func(t *testing.T) {
		back := make(chan struct{})
		defer notify.OpenWith(func(path string) (*os.File, error) { <-back; return os.Open(path) })()
		began := time.Now()
		found := faults(notify.Destination{URLFile: url, HeadersFile: headers, CAFile: ca})
		if took := time.Since(began); len(found) != 3 || took != 2*time.Second {
			t.Errorf("after %s it is judged as %v", took, found)
		}
		close(back)
		synctest.Wait()
	})
}
