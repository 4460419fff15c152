package fleet

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/ec2"
)

// owner is whose an instance is that has no Node here, as far as AWS tells.
type owner int

const (
	// unclear is an instance of which AWS does not tell it: no tag of its names a cluster, it has been gone for too long, or EC2 cannot be
	// asked.
	unknownOwner owner = iota
	thisCluster
	otherCluster
)

// lookUpTimeout bounds a question about whose an instance is. Meanwhile its message is kept from those who may know it; if EC2 takes longer, the
// answer is remembered for when the message comes again.
const lookUpTimeout = 5 * time.Second

// ownerOf asks AWS whose a task's instance is. That the message is in the queue says nothing, as the rules bring what happens to all
// instances and groups of a region. A tag that names a cluster does; and if a hook's group has another instance that is a Node here, all of
// them are ours.
func (f *Fleet) ownerOf(ctx context.Context, t *task) (owner, error) {
	if f.opts.Instances == nil {
		return unknownOwner, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookUpTimeout)
	defer cancel()
	who, err := f.ownerByTags(ctx, t.notice.Instance)
	if who == thisCluster && f.groupWaits(t) && f.nodes.hasUnidentified() {
		who = unknownOwner // A Node may hide it, whose pods would go with the machine if its group did not wait.
	}
	if err != nil || who != unknownOwner || t.notice.Hook == nil {
		return who, err
	}
	members, err := f.opts.Instances.InGroup(ctx, t.notice.Hook.Group)
	if slices.ContainsFunc(members, func(id string) bool { _, there := f.nodes.findInstance(id); return there }) {
		who = thisCluster
	}
	return who, err
}

// ownerByTags tells whose an instance is by its tags. It is another cluster's if they name others and not this one, whose name is known: by the
// settings, or since the instances of all Nodes are tagged with the same one. By whatever name one of them is tagged, it is none of
// another's, so that no slip in the settings makes strangers of our own.
func (f *Fleet) ownerByTags(ctx context.Context, id string) (owner, error) {
	found, known, err := f.clusterTags.lookUp(ctx, id)
	switch {
	case err != nil:
		return unknownOwner, err
	case known && found.Managed && f.opts.OwnTag, slices.Contains(found.Clusters, f.opts.Cluster):
		return thisCluster, nil
	case len(found.Clusters) == 0:
		return unknownOwner, nil
	}
	names, err := f.clusterTags.clusterNames(ctx)
	switch {
	case err != nil:
		return unknownOwner, err
	case slices.ContainsFunc(found.Clusters, func(name string) bool { return names[name] }):
		return thisCluster, nil
	case f.opts.Cluster != "" || len(names) == 1:
		return otherCluster, nil
	}
	return unknownOwner, nil
}

// isForeign tells whether an instance of that owner, without a Node here, is no matter of ours, whatever the API server says.
func (f *Fleet) isForeign(who owner) bool {
	return who == otherCluster || who == unknownOwner && f.opts.LeaveUnknown
}

// endIfForeign ends a task whose instance has no Node here and is no matter of ours, and tells whether it has.
func (f *Fleet) endIfForeign(ctx context.Context, t *task) bool {
	if _, there := f.findNode(ctx, t.notice.Instance); there {
		return false
	}
	who, err := f.ownerOf(ctx, t)
	if err != nil {
		who = unknownOwner
	}
	if _, there := f.findNode(ctx, t.notice.Instance); there || !f.isForeign(who) {
		return false
	}
	f.endWithoutNode(t, who)
	return true
}

// findNode finds the node of an instance: by what the Node tells of itself or, where Nodes do not all tell that, by the name that EC2 knows.
func (f *Fleet) findNode(ctx context.Context, id string) (node, bool) {
	found, there := f.nodes.findInstance(id)
	if there || f.opts.Instances == nil || !f.nodes.hasUnidentified() {
		return found, there
	}
	ctx, cancel := context.WithTimeout(ctx, lookUpTimeout)
	defer cancel()
	instance, _, err := f.clusterTags.lookUp(ctx, id)
	if err != nil {
		return node{}, false
	}
	return f.nodes.findDNS(instance.DNS)
}

// clusterTags knows by which names the instances of this cluster's Nodes are tagged. EC2 is asked about each of them once.
type clusterTags struct {
	nodes *nodes
	ec2   Instances
	turn  chan struct{} // holds an element while somebody learns

	asked, names map[string]bool // those who learn have them

	mu  sync.Mutex
	err error // what EC2 has said instead of an answer, which counts
	til time.Time
}

const (
	// sulking is how long EC2 is not asked again whose instances are when it has refused to say, or could not: it may be for good, and what
	// it takes in is counted for the whole account.
	ec2ErrorPause = 30 * time.Second
	// learning is how many instances are asked about at once; it is as many as go in one request.
	lookUpBatch = 200
)

func newClusterTags(nodes *nodes, ec2 Instances) *clusterTags {
	return &clusterTags{nodes: nodes, ec2: ec2, turn: make(chan struct{}, 1), asked: map[string]bool{}, names: map[string]bool{}}
}

// lookUp is Instances.Look, but fails with what EC2 has said if it has just failed.
func (k *clusterTags) lookUp(ctx context.Context, id string) (ec2.Instance, bool, error) {
	k.mu.Lock()
	err, til := k.err, k.til
	k.mu.Unlock()
	if time.Now().Before(til) {
		return ec2.Instance{}, false, err
	}
	found, known, err := k.ec2.Look(ctx, id)
	if err != nil && ctx.Err() == nil {
		k.mu.Lock()
		k.err, k.til = err, time.Now().Add(ec2ErrorPause)
		k.mu.Unlock()
	}
	return found, known, err
}

// clusterNames returns the names of this cluster, as of all Nodes that there are.
func (k *clusterTags) clusterNames(ctx context.Context) (map[string]bool, error) {
	select {
	case k.turn <- struct{}{}:
		defer func() { <-k.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	var news []string
	asked := map[string]bool{}
	k.nodes.each(func(n node) {
		switch {
		case k.asked[n.instance]:
			asked[n.instance] = true
		case n.instance != "":
			news = append(news, n.instance)
		}
	})
	k.asked = asked
	for some := range slices.Chunk(news, lookUpBatch) {
		if err := k.addTagsOf(ctx, some); err != nil {
			return nil, err
		}
	}
	return maps.Clone(k.names), nil
}

// addTagsOf takes in the tags of some instances.
func (k *clusterTags) addTagsOf(ctx context.Context, ids []string) error {
	found, failed := make([]ec2.Instance, len(ids)), make([]error, len(ids))
	var all sync.WaitGroup
	for i, id := range ids {
		all.Go(func() { found[i], _, failed[i] = k.lookUp(ctx, id) })
	}
	all.Wait()
	for i, id := range ids {
		if failed[i] != nil {
			return failed[i]
		}
		k.asked[id] = true
		for _, name := range found[i].Clusters {
			k.names[name] = true
		}
	}
	return nil
}
