// Package broken breaks each rule of .golangci.yml in one line, which says so at its end.
package broken

import (
	"context"
	"errors"
	"fmt"
	"html/template" // want depguard
	"io"
	"log"
	"math/rand" // want depguard
	"net/http"
	"os"
	. "strings" // want staticcheck
	"sync/atomic"
	"syscall"
)

// Ends and speaks as only a program may // want godot
func Ends(log *log.Logger) {
	end := os.Exit // want forbidigo
	end(1)
	syscall.Exit(1)   // want forbidigo
	log.Fatalf("no")  // want forbidigo revive
	fmt.Println("no") // want forbidigo
	panic("no")       // want forbidigo
}

// Contexts begin where they may not.
func Contexts() []context.Context {
	return []context.Context{
		context.Background(), // want forbidigo
		context.TODO(),       // want forbidigo
	}
}

// Shared is what the process has but once.
var Shared = http.DefaultClient // want forbidigo

func init() { // want gochecknoinits
	Shared = nil
}

// Mistakes are found in one statement each.
func Mistakes(ctx context.Context, err error, file io.Closer) error {
	response, _ := http.NewRequestWithContext(ctx, "GET", "", nil)
	answer, doing := Shared.Do(response) // want bodyclose
	_ = answer
	os.Remove("a")       // want errcheck
	if doing == io.EOF { // want errorlint
		return nil
	}
	for i := 0; i < 3; i++ { // want intrange
		_ = i
	}
	for i := range 3 {
		i := i // want copyloopvar
		_ = i
	}
	fmt.Fprintf(os.NewFile(0, ""), "%d", "a") // want govet staticcheck
	unit := uint64(3)
	_ = uint64(unit) // want unconvert
	n := 1           // want ineffassign wastedassign
	n = rand.Int()
	_ = n
	if ctx.Err() != nil {
		return nil // want nilerr
	}
	if err != nil {
		return errors.New("failed to draining") // want revive
	}
	_ = template.HTML(ToUpper("")) //nolint:errcheck // nothing is wrong // want nolintlint
	var late int
	late = 1 // want ineffassign wastedassign
	late = 2
	_ = late
	if Contains("a", "") == true { // want staticcheck
		return nil
	}
	atomic.AddInt64(new(int64), 1) // the adress // want misspell
	return file.Close()
}

type alone struct{} // want unused

// Long does not fit a screen.
func Long() { // want funlen
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
	// Nor do comments.
}

// Winding has many ways through it.
func Winding(n int) { // want gocyclo
	if n == 0 || n == 1 || n == 2 || n == 3 || n == 4 || n == 5 || n == 6 {
		n++
	}
	if n == 7 || n == 8 || n == 9 || n == 10 || n == 11 || n == 12 || n == 13 {
		n++
	}
	if n == 14 || n == 15 || n == 16 || n == 17 || n == 18 || n == 19 {
		n++
	}
	_ = n
}
