package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/internal/traffic"
	"github.com/nth-project/nth/test/tools"
)

// Lose lets a person watch a node with real containers being lost, in every way in which that can happen, and says how
// many requests were lost with it. If file names a page, the table is written there. It returns nil if none was
// lost with nth, and ctx's error if it was interrupted.
func Lose(ctx context.Context, opts Options, file string) error {
	p := newPage(opts.Out, os.Getenv)
	ways := traffic.Ways()
	p.say(strong, "What is lost with a node: %d ways to deal with a spot notice.", len(ways))
	p.say(plain, "Each time two machines are booted, with a real kubelet, containerd and containers, and joined to")
	p.say(plain, "a real control plane. Then EC2 takes one of them back. All of it takes about a quarter of an hour.")
	p.say(plain, "")
	p.say(strong, "%d requests a second go to each of three Services:", traffic.Full.Rate)
	for _, service := range traffic.Services() {
		p.item(service, traffic.Describe(service))
	}
	p.say(plain, "")
	if err := errors.Join(tools.Build(ctx, writerTo(p), "kubelet", "containerd"), ctx.Err()); err != nil {
		return unlessInterrupted(ctx, err)
	}
	dir, err := workspace()
	if err != nil {
		return err
	}
	var results []traffic.Result
	err = lab.Run(ctx, writerTo(p), func(t lab.TB) {
		cp := lab.ForTest(stage{t})
		for _, way := range ways {
			// Its machines go before the next are booted.
			err := lab.Run(ctx, writerTo(p), func(t lab.TB) { results = append(results, lose(stage{t}, p, cp, way)) })
			if err != nil {
				t.Fatalf("%v", err)
			}
		}
	})
	if err = unlessInterrupted(ctx, err); err == nil {
		err = conclude(p, results, file)
	}
	if err == nil || ctx.Err() != nil {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}

// lose has a node taken in that way, and tells it.
func lose(t lab.TB, p *page, cp *lab.ControlPlane, way traffic.Way) traffic.Result {
	p.pods = len("search-0123456789-01234") // the longest name of a pod
	p.say(strong, "Who deals with the notice: %s", way.Name)
	p.step("machines")
	began := time.Now()
	var mu sync.Mutex
	var notice time.Time
	r := traffic.Run(t, cp, way, traffic.Full, func(f traffic.Fact) {
		mu.Lock()
		defer mu.Unlock()
		if notice.IsZero() {
			if f.Who != traffic.EC2 {
				return // what makes the scene is not told
			}
			notice = f.At
			p.done("two, with 6 pods, under load after %.0f s", time.Since(began).Seconds())
		}
		p.row(rowOf(f, notice))
	})
	for _, c := range r.Counts {
		e, text := good, "none"
		if c.Lost > 0 {
			e, text = bad, fmt.Sprintf("%d, over %.1f s", c.Lost, c.Last.Sub(c.First).Seconds())
		}
		p.say(e, "  requests lost  %s: %s of %d", pad(c.Service, 8), text, c.Sent)
	}
	p.say(plain, "")
	return r
}

// rowOf turns a fact into a line of the timeline.
func rowOf(f traffic.Fact, notice time.Time) row {
	r := row{at: f.At.Sub(notice), who: f.Who, subject: f.Subject, text: f.Text}
	switch f.Weight {
	case traffic.Strong:
		r.emphasis = strong
	case traffic.Bad:
		r.emphasis = bad
	}
	return r
}

// conclude prints the table, and writes it into the file if there is one.
func conclude(p *page, results []traffic.Result, file string) error {
	table := traffic.Table(results, traffic.Full)
	p.say(strong, "Requests lost")
	p.block(table)
	if file != "" {
		if err := traffic.WriteTable(file, table); err != nil {
			return err
		}
		p.say(faint, "The table is in %s now.", file)
	}
	for _, c := range results[len(results)-1].Counts {
		if c.Lost > 0 {
			return fmt.Errorf("%d requests to %s were lost with nth", c.Lost, c.Service)
		}
	}
	p.say(good, "With nth none was lost.")
	return nil
}
