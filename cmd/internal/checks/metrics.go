package checks

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nth-project/nth/pkg/config"
)

// answerLimit is how long somebody may take to answer who has the address for metrics.
const answerLimit = 5 * time.Second

// Metrics checks whether metrics can be had where the settings say. In an image that is being made there is nothing to listen at, and what
// makes the file's directory may come later.
func (l *List) Metrics(ctx context.Context, cfg config.Metrics, image bool) {
	if cfg.Textfile != "" {
		l.textfile(filepath.Dir(cfg.Textfile), image)
	}
	if cfg.Listen == "" || image {
		return
	}
	var network net.ListenConfig
	listener, err := network.Listen(ctx, "tcp", cfg.Listen)
	switch {
	case err == nil:
		_ = listener.Close() // Nobody has come.
		l.OK("metrics", "can listen on %s", cfg.Listen)
	case errors.Is(err, syscall.EADDRINUSE) && l.serves(ctx, cfg.Listen):
		l.OK("metrics", "%s serves them at %s", l.program, cfg.Listen)
	default:
		l.Fail("metrics", "metrics.listen: %s; they cannot be scraped, but %s works without", err, l.program)
	}
}

// textfile checks the directory of the file.
func (l *List) textfile(directory string, image bool) {
	found, err := os.Stat(directory)
	if err == nil && !found.IsDir() {
		err = &os.PathError{Op: "stat", Path: directory, Err: syscall.ENOTDIR}
	}
	switch {
	case err == nil:
		l.OK("metrics", "the directory %s is there", directory)
	case image:
		l.Warn("metrics", "metrics.textfile: %s; no file is written until it exists", err)
	default:
		l.Fail("metrics", "metrics.textfile: %s; no file is written, and %s works without", err, l.program)
	}
}

// serves tells whether it is this program that serves at an address.
func (l *List) serves(ctx context.Context, address string) bool {
	if host, port, err := net.SplitHostPort(address); err == nil && host == "" {
		address = net.JoinHostPort("localhost", port)
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return false
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		return false
	}
	defer func() { _ = answer.Body.Close() }() // It was only read.
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	return err == nil && strings.Contains(string(text), "nth_build_info")
}
