package apitest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// object is one state of a Node or a Pod. It is never changed: a write puts another object in its place.
type object struct {
	pod  *corev1.Pod
	node *corev1.Node
	text json.RawMessage // set by json
}

// json returns the object as JSON, and keeps it.
func (o *object) json() json.RawMessage {
	if o.text == nil {
		var from any = o.pod
		if o.node != nil {
			from = o.node
		}
		text, err := json.Marshal(from)
		if err != nil {
			panic(fmt.Sprintf("encoding an object: %v", err)) // a mistake in this package
		}
		o.text = text
	}
	return o.text
}

// change is one entry of the history, which watches replay.
type change struct {
	version int64
	at      time.Time
	kind    string // of the event in a watch of the node, or of the pods bound to it; see elsewhere for changes that are no event
	object  *object
}

// Now is the API server's clock, as exact as it is written into objects: metav1.Time has seconds.
func (s *Server) Now() metav1.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now()
}

func (s *Server) now() metav1.Time {
	return metav1.NewTime(time.Now().Add(s.skew).UTC().Truncate(time.Second))
}

// SetSkew makes the API server's clock differ from the test's by so much.
func (s *Server) SetSkew(skew time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.skew = skew
}

// SetLag makes the watch cache of the API server lag behind its storage, by so many writes or so much time, whichever is
// more. From the cache come lists of version 0 or "not older than", watches, and what admission knows of pods. It may
// also go back, as for a client that meets another API server.
func (s *Server) SetLag(writes int64, by time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lagWrites, s.lagTime = writes, by
	s.wake()
}

// Compact makes the API server forget its history: a watch from an older version gets an error that it has expired.
func (s *Server) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.oldest = s.version
}

// visible is the version up to which the watch cache has come. No list is of version 0: a watch from there would begin anywhere.
func (s *Server) visible() int64 {
	v := s.version - s.lagWrites
	for i := len(s.history) - 1; i >= 0 && time.Since(s.history[i].at) < s.lagTime; i-- {
		v = min(v, s.history[i].version-1)
	}
	return max(v, 1)
}

// surfaces returns in how long the cache will contain the next change. ever is false if only a further write, or nothing, makes it do so.
func (s *Server) surfaces() (in time.Duration, ever bool) {
	v := s.visible()
	i := s.after(v)
	if i == len(s.history) || s.lagTime == 0 {
		return 0, false
	}
	in = s.lagTime - time.Since(s.history[i].at)
	return max(in, time.Millisecond), in > 0
}

// after is the index of the first change after a version.
func (s *Server) after(version int64) int {
	return sort.Search(len(s.history), func(i int) bool { return s.history[i].version > version })
}

// podsAt returns all pods as they were at a version.
func (s *Server) podsAt(version int64) map[string]*object {
	if version >= s.version || s.after(version) == len(s.history) {
		return s.pods
	}
	pods := map[string]*object{}
	for _, c := range s.history[:s.after(version)] {
		switch {
		case c.object.pod == nil:
		case c.gone():
			delete(pods, key(c.object.pod))
		default:
			pods[key(c.object.pod)] = c.object
		}
	}
	return pods
}

func (c change) gone() bool { return c.kind == deleted || c.kind == deletedElsewhere }

const (
	added    = "ADDED"
	modified = "MODIFIED"
	deleted  = "DELETED"
	// Changes of pods that are not bound to the node. A watch does not show them.
	elsewhere        = ""
	deletedElsewhere = "-"
)

// tick begins the next version, and returns it.
func (s *Server) tick() string {
	s.version++
	return strconv.FormatInt(s.version, 10)
}

// happened adds a change to the history, for watches.
func (s *Server) happened(kind string, o *object) {
	s.history = append(s.history, change{version: s.version, at: time.Now(), kind: kind, object: o})
	s.wake()
}

// wake has watches and lists that wait look at the history again.
func (s *Server) wake() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// putPod writes a pod's new state, which is the server's from now on. Controllers of pods act after that.
func (s *Server) putPod(pod *corev1.Pod) {
	name := key(pod)
	before := s.pods[name]
	pod.ResourceVersion = s.tick()
	o := &object{pod: pod}
	s.pods[name] = o
	kind := modified
	switch {
	case pod.Spec.NodeName != Node:
		kind = elsewhere
	case before == nil || before.pod.Spec.NodeName != Node:
		kind = added
	}
	s.happened(kind, o)
	s.look(pod.Namespace)
}

// remove takes a pod out of the storage.
func (s *Server) remove(name string) {
	o := s.pods[name]
	if o == nil {
		return
	}
	pod := o.pod.DeepCopy()
	pod.ResourceVersion = s.tick()
	delete(s.pods, name)
	delete(s.terminations, pod.UID)
	delete(s.endings, pod.UID)
	if owner := metav1.GetControllerOf(pod); owner == nil || owner.Kind != "DaemonSet" {
		s.removed = time.Now()
	}
	kind := deleted
	if pod.Spec.NodeName != Node {
		kind = deletedElsewhere
	}
	s.happened(kind, &object{pod: pod})
	s.look(pod.Namespace)
}

func (s *Server) putNode(node *corev1.Node) {
	kind := modified
	if s.node == nil {
		kind = added
	}
	node.ResourceVersion = s.tick()
	s.node = &object{node: node}
	s.happened(kind, s.node)
}

// later does something after a while, unless the server has ended.
func (s *Server) later(in time.Duration, do func()) {
	time.AfterFunc(in, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.closed {
			do()
		}
	})
}

// look has the controllers handle a change of the pods of a namespace. What they do calls look again: then the loop below runs once more.
func (s *Server) look(namespace string) {
	for _, b := range s.budgets {
		if b.Namespace == namespace {
			s.lookLater(b)
		}
	}
	if s.looking {
		s.again = true
		return
	}
	s.looking, s.again = true, true
	for s.again {
		s.again = false
		for _, w := range s.workloads {
			s.reconcile(w)
		}
	}
	s.looking = false
}

func key(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

// sorted are objects in the storage's order.
func sorted(pods map[string]*object) []*object {
	return slices.SortedFunc(maps.Values(pods), func(a, b *object) int {
		return cmp.Or(cmp.Compare(a.pod.Namespace, b.pod.Namespace), cmp.Compare(a.pod.Name, b.pod.Name))
	})
}
