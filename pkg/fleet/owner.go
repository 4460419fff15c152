package fleet

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nth-project/nth/pkg/ec2"
)

// owner is the cluster that an instance without a Node belongs to, as far as AWS knows.
type owner int

const (
	// unknownOwner: no tag names a cluster, the instance has been gone for too long, or EC2 cannot be asked.
	unknownOwner owner = iota
	thisCluster
	otherCluster
)

// lookUpTimeout bounds the question which cluster an instance belongs to: meanwhile other clusters cannot receive its message. A later
// answer of EC2 is cached for when the message is received again.
const lookUpTimeout = 5 * time.Second

// ownerOf asks AWS which cluster a task's instance belongs to. Being in the queue says nothing, because EventBridge rules match all
// instances and groups of a region. A tag with a cluster's name does, and so does a group that has an instance with a Node here.
func (f *Fleet) ownerOf(ctx context.Context, t *task) (owner, error) {
	if f.opts.Instances == nil {
		return unknownOwner, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookUpTimeout)
	defer cancel()
	who, err := f.ownerByTags(ctx, t.notice.Instance)
	if who == thisCluster && f.groupWaits(t) && f.nodes.hasUnidentified() {
		who = unknownOwner // It may be that of an unidentified Node, whose pods would be lost if the group did not wait.
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

// ownerByTags tells by the tags of an instance which cluster it belongs to. It is another cluster's if the tags name only others and the
// name of this one is known, from the settings or because the instances of all Nodes are tagged with the same name. An instance with any
// name that the instances of this cluster's Nodes are tagged with is this cluster's, whatever the settings say.
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

// isForeign reports whether an instance of that owner without a Node here is left to others without asking the API server.
func (f *Fleet) isForeign(who owner) bool {
	return who == otherCluster || who == unknownOwner && f.opts.LeaveUnknown
}

// endIfForeign ends a task whose instance has no Node here and is left to others, and reports whether it has done so.
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

// findNode finds the node of an instance: by spec.providerID or, if some Nodes have none, by the private DNS name that EC2 knows.
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

// clusterTags knows the cluster names that the instances of this cluster's Nodes are tagged with. EC2 is asked once about each instance.
type clusterTags struct {
	nodes *nodes
	ec2   Instances
	turn  chan struct{} // holds an element while clusterNames is being called

	asked, names map[string]bool // guarded by turn

	mu  sync.Mutex
	err error // of EC2, which is not asked again before til
	til time.Time
}

const (
	// ec2ErrorPause is how long EC2 is not asked again for tags after an error: the permission may be missing for good, and requests are
	// throttled for the whole account.
	ec2ErrorPause = 30 * time.Second
	// lookUpBatch is how many instances are looked up at once: as many as fit into one request.
	lookUpBatch = 200
)

func newClusterTags(nodes *nodes, ec2 Instances) *clusterTags {
	return &clusterTags{nodes: nodes, ec2: ec2, turn: make(chan struct{}, 1), asked: map[string]bool{}, names: map[string]bool{}}
}

// lookUp is Instances.Look, but returns EC2's last error while ec2ErrorPause lasts.
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

// clusterNames returns the names that the instances of all current Nodes are tagged with.
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

// addTagsOf looks up instances and adds the cluster names in their tags.
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
