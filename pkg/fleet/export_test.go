package fleet

import "time"

// Place is a node's place in a Line.
type Place struct {
	Node, Group string
	Spot        bool
	Deadline    time.Time
	Since       time.Time
}

// Line is a line with limits.
type Line struct{ line drainQueue }

// NewLine returns an empty line.
func NewLine(l Limits) *Line { return &Line{drainQueue{limits: l}} }

// Join puts a node into the line.
func (l *Line) Join(p Place) {
	l.line.add(waitingNode{node: p.Node, group: p.Group, urgent: p.Spot, deadline: p.Deadline, since: p.Since})
}

// Next returns who may begin while so many are being drained in each group.
func (l *Line) Next(busy map[string]int) []string {
	c := counts{group: map[string]int{}}
	for group, n := range busy {
		c.all += n
		c.group[group] = n
	}
	var names []string
	begin := l.line.next(c)
	for _, p := range begin {
		names = append(names, p.node)
	}
	l.line.remove(begin)
	return names
}

// PlacesText is what is written of the nodes that processes drain, with their groups, and PlacesRead how many nodes of each group are read of
// it.
func PlacesText(drained map[string]map[string]string) string {
	all := slots{}
	for process, nodes := range drained {
		all[process] = map[nodeKey]string{}
		for node, group := range nodes {
			all[process][nodeKeyOf(node)] = group
		}
	}
	return all.text()
}

// PlacesRead is described there.
func PlacesRead(text string) map[string]int {
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
