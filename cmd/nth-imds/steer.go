package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/nth-project/nth/pkg/imds/imdstest"
)

const defaultServer = "http://" + defaultListen

// patience is how long a simulator may take to answer.
const patience = 10 * time.Second

// steering is the flags that every command has which speaks to a serving nth-imds.
type steering struct {
	flags
	server string
	after  time.Duration
}

func newSteering(name, usage string) *steering {
	s := &steering{flags: newFlags(name, usage)}
	otherwise := defaultServer
	if named := os.Getenv("NTH_IMDS"); named != "" {
		otherwise = named
	}
	s.StringVar(&s.server, "server", otherwise, "")
	return s
}

// canWait gives the command the flag --after.
func (s *steering) canWait() *steering {
	s.duration(&s.after, "after")
	return s
}

func (s *steering) client() imdstest.Client {
	server := s.server
	if !strings.Contains(server, "://") {
		server = "http://" + server
	}
	return imdstest.Client{URL: server, After: s.after}
}

// tell asks for one change and prints what was done.
func (s *steering) tell(ctx context.Context, out io.Writer, ask func(context.Context, imdstest.Client) (string, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	text, err := ask(ctx, s.client())
	if err != nil {
		return s.explain(err)
	}
	_, err = fmt.Fprintln(out, text)
	return err
}

// explain adds to an error what the reader can do about it.
func (s *steering) explain(err error) error {
	var unreachable *url.Error
	if errors.As(err, &unreachable) {
		return fmt.Errorf("%s: no simulator answers at %s (%w): start one with \"nth-imds\", or name it with --server or NTH_IMDS",
			s.Name(), s.server, unreachable.Err)
	}
	return fmt.Errorf("%s: %w", s.Name(), err)
}
