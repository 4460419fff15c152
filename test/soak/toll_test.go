package soak_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/nth-project/nth/pkg/systemd"
	"github.com/nth-project/nth/test/internal/daemon"
)

// toll counts what has happened, by name.
type toll struct {
	mu     sync.Mutex
	counts map[string]int
}

func (c *toll) add(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[string]int{}
	}
	c.counts[name]++
}

// foremost are the names that are told first, also where there is nothing to tell.
var foremost = []string{"rounds", "events announced", "drains", "restarts", "violations"}

// String tells all counts in one line.
func (c *toll) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var parts []string
	tell := func(name string) { parts = append(parts, fmt.Sprintf("%d %s", c.counts[name], name)) }
	for _, name := range foremost {
		tell(name)
	}
	for _, name := range slices.Sorted(maps.Keys(c.counts)) {
		if !slices.Contains(foremost, name) {
			tell(name)
		}
	}
	return strings.Join(parts, ", ")
}

// said are the messages of nth that are counted.
var said = map[string]string{
	systemd.Drained:    "drains",
	systemd.PodEvicted: "pods evicted",
	systemd.PodDeleted: "pods deleted",
	systemd.Cordoned:   "cordons set",
	systemd.Uncordoned: "cordons lifted",
}

// hear counts a message of nth.
func (c *toll) hear(e daemon.Entry) {
	if name, counted := said[e.Fields[systemd.FieldMessageID]]; counted {
		c.add(name)
	}
}
