package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/nth-project/nth/pkg/imds/imdstest"
)

const defaultListen = "127.0.0.1:1338"

// serve is the metadata service until ctx ends.
func serve(ctx context.Context, args []string, out io.Writer) error {
	f := newFlags("serve", serveUsage)
	listen := f.String("listen", defaultListen, "")
	lifeCycle := f.String("life-cycle", "spot", "")
	verbose := f.Bool("verbose", false, "")
	if _, err := f.parse(args); err != nil {
		return err
	}
	if *lifeCycle != "spot" && *lifeCycle != "on-demand" {
		return usageError{fmt.Sprintf("serve: --life-cycle is %q: want spot or on-demand", *lifeCycle)}
	}
	srv, err := imdstest.Listen(*listen)
	if err != nil {
		return err
	}
	srv.SetLifeCycle(*lifeCycle)
	greet(out, srv.URL, *lifeCycle)
	narrate(srv, out, *verbose)
	<-ctx.Done()
	srv.OnChange(nil)
	srv.Close()
	seen := srv.Requests()
	_, _ = fmt.Fprintf(out, "%s stopped, after %d requests, %d of them for tokens\n", clock(), seen.Total, seen.Tokens)
	return nil
}

// greet says what is served where. The first line is for programs too: its last word is the address.
func greet(out io.Writer, url, lifeCycle string) {
	steer := ""
	if url != defaultServer {
		steer = " --server " + url
	}
	_, _ = fmt.Fprintf(out, `nth-imds serves the instance metadata service, version 2, on %s
  instance   %s, %s, %s in %s; nothing is announced
  interrupt  nth-imds trigger spot --in 2m%s
  more       nth-imds help
`, url, imdstest.InstanceID, imdstest.InstanceType, lifeCycle, imdstest.AvailabilityZone, steer)
}

// narrate prints each change and, if verbose, each request. The simulator calls one at a time.
func narrate(srv *imdstest.Server, out io.Writer, verbose bool) {
	srv.OnChange(func(change string) { _, _ = fmt.Fprintf(out, "%s %s\n", clock(), change) })
	if !verbose {
		return
	}
	srv.OnRequest(func(e imdstest.Exchange) {
		status := "no answer"
		if e.Status != 0 {
			status = fmt.Sprint(e.Status)
		}
		if e.Fault != "" {
			status += ", fault: " + e.Fault
		}
		_, _ = fmt.Fprintf(out, "%s %s %s: %s\n", clock(), e.Method, e.Path, status)
	})
}

func clock() string { return time.Now().Format("15:04:05.000") }
