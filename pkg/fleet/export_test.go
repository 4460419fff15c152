package fleet

import (
	"time"

	"github.com/nth-project/nth/pkg/event"
	"github.com/nth-project/nth/pkg/sqs"
)

// Place is a node in a Queue.
type Place struct {
	Node, Group string
	Spot        bool
	Deadline    time.Time
	Since       time.Time
}

// Queue is a queue of nodes with limits.
type Queue struct{ fleet *Fleet }

// NewQueue returns an empty queue.
func NewQueue(l Limits) *Queue {
	f := &Fleet{sessions: map[string]*session{}}
	f.Use(Rules{Limits: l})
	return &Queue{f}
}

// Join puts a node into the queue.
func (q *Queue) Join(p Place) {
	s := q.fleet.sessions[p.Node]
	if s == nil {
		s = &session{node: p.Node, group: p.Group, since: p.Since, tasks: map[string]*task{}}
		q.fleet.sessions[p.Node] = s
	}
	ev := event.Event{ID: p.Since.String(), Deadline: p.Deadline}
	if p.Spot {
		ev.Kind = event.SpotInterruption
	}
	s.tasks[ev.ID] = &task{notice: sqs.Notice{Event: ev}}
}

// Next returns who may begin while so many are being drained in each group.
func (q *Queue) Next(busy map[string]int) []string {
	c := counts{group: map[string]int{}}
	for group, n := range busy {
		c.all += n
		c.group[group] = n
	}
	var names []string
	for _, s := range admit(q.fleet.waiting(), c, q.fleet.rules.Load().Limits) {
		s.begun = true
		names = append(names, s.node)
	}
	return names
}

// SlotsText is what is written of the nodes that processes drain, with their groups, and SlotsRead how many nodes of each group are read of
// it.
func SlotsText(drained map[string]map[string]string) string {
	all := slots{}
	for process, nodes := range drained {
		all[process] = map[nodeKey]string{}
		for node, group := range nodes {
			all[process][nodeKeyOf(node)] = group
		}
	}
	return all.text()
}

// SlotsRead is described there.
func SlotsRead(text string) map[string]int {
	groups := map[string]int{}
	for _, nodes := range parseSlots(text) {
		for _, group := range nodes {
			groups[group]++
		}
	}
	return groups
}

// InstanceOf, Silent and RetryPause are what they are called inside.
var (
	InstanceOf = instanceOf
	Silent     = silent
	RetryPause = retryPause
)
