package record

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// DrainRequest is what "nth drain" asks of the daemon. It is a file in the state directory, and is in effect until the file is removed.
type DrainRequest struct {
	// ID identifies the request. Asked is when it was made, and Deadline when the drain should have ended, by the machine's clock.
	ID       string    `json:"id"`
	Asked    time.Time `json:"asked"`
	Deadline time.Time `json:"deadline"`
}

// longestID is the longest ID of a request, in bytes. The ID is logged, and written on the Node.
const longestID = 100

// valid returns why "nth drain" cannot have written the request; nil if it can.
func (r DrainRequest) valid() error {
	if r.ID == "" || len(r.ID) > longestID {
		return fmt.Errorf("the drain request's ID has %d bytes, but must have 1 to %d", len(r.ID), longestID)
	}
	return nil
}

// requestFile returns the file of the request in a state directory.
func requestFile(dir string) file { return file{dir: dir, name: "drain.json"} }

// ReadDrainRequest returns the request in a state directory; the zero value if there is none or with an error.
func ReadDrainRequest(dir string) (DrainRequest, error) {
	var r DrainRequest
	if err := requestFile(dir).read(&r); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return DrainRequest{}, fmt.Errorf("reading the drain request %s: %w", requestFile(dir).path(), err)
	}
	return r, nil
}

// Write replaces the request in the state directory dir, which need not exist.
func (r DrainRequest) Write(dir string) error { return requestFile(dir).write(r) }

// RemoveDrainRequest removes the request in a state directory, if there is one.
func RemoveDrainRequest(dir string) error {
	if err := os.Remove(requestFile(dir).path()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
