package main

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/nth-project/nth/pkg/imds/imdstest"
)

// fault breaks the service.
func fault(ctx context.Context, args []string, out io.Writer) error {
	var f imdstest.Fault
	s := newSteering("fault", faultUsage).canWait()
	s.StringVar(&f.Path, "path", "", "")
	s.duration(&f.For, "for")
	s.duration(&f.Over, "over")
	s.IntVar(&f.Status, "status", 0, "")
	s.IntVar(&f.Times, "times", 0, "")
	words, err := s.parse(args, "KIND")
	if err != nil {
		return err
	}
	if err := setKind(&f, words[0]); err != nil {
		return err
	}
	return s.tell(ctx, out, func(ctx context.Context, c imdstest.Client) (string, error) {
		return c.Fault(ctx, f)
	})
}

// setKind reads the word for a fault: the name of a kind, or the status to answer with.
func setKind(f *imdstest.Fault, word string) error {
	for _, kind := range imdstest.Kinds() {
		if word == string(kind) && kind != imdstest.Status {
			f.Kind = kind
			return nil
		}
	}
	status, err := strconv.Atoi(word)
	if err != nil || status < 400 || status > 599 {
		return usageError{fmt.Sprintf(
			"fault: %q is no fault: want reset, hang, slow, garbage, oversized, token-down, refuse, or a status from 400 to 599", word)}
	}
	f.Kind, f.Status = imdstest.Status, status
	return nil
}

// lift repairs the service.
func lift(ctx context.Context, args []string, out io.Writer) error {
	s := newSteering("lift", liftUsage).canWait()
	if _, err := s.parse(args); err != nil {
		return err
	}
	return s.tell(ctx, out, func(ctx context.Context, c imdstest.Client) (string, error) { return c.Lift(ctx) })
}

func expireTokens(ctx context.Context, args []string, out io.Writer) error {
	s := newSteering("expire-tokens", expireUsage).canWait()
	if _, err := s.parse(args); err != nil {
		return err
	}
	return s.tell(ctx, out, func(ctx context.Context, c imdstest.Client) (string, error) { return c.ExpireTokens(ctx) })
}
