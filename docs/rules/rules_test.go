package rules_test

import (
	"go/types"
	"slices"
	"strings"
	"testing"
)

// rule is one sentence about the source: some things need a permission.
type rule struct {
	name string // as in "only cmd reads the environment"
	why  string
	// uses finds all that needs a permission.
	uses func(tree) ([]use, error)
	// permits are the permissions. The first one for a thing says who may use it. One that nobody uses breaks the rule, and so
	// does a search that finds too little.
	permits []permit
}

// use is something that needs a permission, such as an import, where it is.
type use struct{ what, dir, at string }

// permit lets packages use something. A name that ends with * stands for all that begin so, a directory that ends with a
// slash for all below it.
type permit struct {
	what string
	dirs []string
	why  string // where the rule's own reason does not say it
}

var all = slices.Concat(importRules, effectRules)

// judge returns the lines that break the rule, with what does, and the permissions that nobody uses.
func (r rule) judge(uses []use) (broken []use, unused []string) {
	used := map[string]bool{}
	for _, u := range uses {
		i := slices.IndexFunc(r.permits, func(p permit) bool { return covers(p.what, "*", u.what) })
		j := -1
		if i >= 0 {
			j = slices.IndexFunc(r.permits[i].dirs, func(dir string) bool { return covers(dir, "/", u.dir) })
		}
		if j < 0 {
			broken = append(broken, u)
		} else {
			used[r.permits[i].what+" in "+r.permits[i].dirs[j]] = true
		}
	}
	for _, p := range r.permits {
		for _, dir := range p.dirs {
			if name := p.what + " in " + dir; !used[name] {
				unused = append(unused, name)
			}
		}
	}
	return broken, unused
}

// covers tells whether the pattern, open if it ends with the sign, is of the name.
func covers(pattern, open, name string) bool {
	if !strings.HasSuffix(pattern, open) {
		return pattern == name
	}
	return strings.HasPrefix(name, strings.TrimSuffix(pattern, "*"))
}

// reason is why the rule, or its permission for such a thing, is there.
func (r rule) reason(what string) string {
	for _, p := range r.permits {
		if covers(p.what, "*", what) && p.why != "" {
			return p.why
		}
	}
	return r.why
}

func TestTheProjectKeepsEveryRule(t *testing.T) {
	for _, r := range all {
		t.Run(r.name, func(t *testing.T) {
			uses, err := r.uses(project(t))
			if err != nil {
				t.Fatal(err)
			}
			broken, unused := r.judge(uses)
			for _, u := range broken {
				t.Errorf("%s: %s\n\trule: %s\n\twhy:  %s", u.at, u.what, r.name, r.reason(u.what))
			}
			for _, permission := range unused {
				t.Errorf("nobody uses the permission of %s: take it out of docs/rules\n\trule: %s", permission, r.name)
			}
		})
	}
}

// typed is where the API server's clients are declared.
const typed = "k8s.io/client-go/kubernetes/typed/"

// lock is the Lease, as leaderelection has it.
const lock = "k8s.io/client-go/tools/leaderelection/resourcelock.Interface."

// mayAsk says for each package what it may ask of the API server.
var mayAsk = map[string][]string{
	"pkg/evict": {
		"k8s.io/client-go/rest.Interface.Get", "k8s.io/client-go/rest.Interface.Post", "k8s.io/client-go/rest.Interface.Delete",
		"k8s.io/kubectl/pkg/drain.Helper.GetPodsForDeletion", "k8s.io/kubectl/pkg/drain.PodDeleteList.Pods", // of a client in memory
	},
	"pkg/wait":  {"k8s.io/client-go/rest.Interface.Get"},
	"pkg/kube":  {typed + "authorization/v1.SelfSubjectAccessReviewInterface.Create"},
	"pkg/drain": {"k8s.io/client-go/rest.Interface.Get", "k8s.io/client-go/rest.Interface.Patch"},
	// Taints, which a node itself may not set, notes, and the Lease; and the fence before its writes.
	"pkg/fleet": {
		typed + "authentication/v1.SelfSubjectReviewInterface.Create",
		typed + "core/v1.NodeInterface.Get", typed + "core/v1.NodeInterface.List", typed + "core/v1.NodeInterface.Watch", typed + "core/v1.NodeInterface.Patch",
		"k8s.io/client-go/tools/leaderelection.LeaderElector.Run", lock + "Get", lock + "Create", lock + "Update", "k8s.io/client-go/rest.Client",
	},
	"pkg/identity": {
		typed + "authentication/v1.SelfSubjectReviewInterface.Create", typed + "core/v1.NodeInterface.Get",
	},
	"pkg/notify": {
		typed + "core/v1.EventInterface.Create",
		typed + "core/v1.NodeInterface.Get", typed + "core/v1.NodeExpansion.PatchStatus",
	},
}

var effectRules = []rule{
	{
		name:    "drain writes to the node and its pods, and others ask only what they are there for",
		why:     "what nth does to a node, and what it undoes, is in one package; identity reads the node, notify sets a condition, and fleet taints nodes, notes what was done, and leads",
		uses:    func(t tree) ([]use, error) { return t.uses(func(source) bool { return true }, asks) },
		permits: byPackage(mayAsk),
	},
	{
		name: "what decides, describes or remembers reads no clock",
		why:  "time is given to them, so that every moment can be tested",
		uses: func(t tree) ([]use, error) {
			inside := deciding(t)
			return effects(func(s source) bool { return inside[s.dir()] || s.dir() == "pkg/record" || s.dir() == "pkg/config" },
				"time.Now", "time.Since", "time.Until", "time.After*", "time.New*", "time.Tick", "time.Sleep")(t)
		},
	},
}

// effects makes a search for what matches one of the names. A name that ends with * stands for all that begin so.
func effects(where func(source) bool, names ...string) func(tree) ([]use, error) {
	return func(t tree) ([]use, error) {
		return t.uses(where, func(name string, _ types.Object) bool { return named(name, names) })
	}
}

func named(name string, patterns []string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return covers(pattern, "*", name) })
}

// asks tells whether something is a way to ask the API server, be it through a client of one kind of object, of any kind,
// with an address of one's own, or through kubectl. Such clients' methods take a context, and those that begin a request return one.
func asks(name string, object types.Object) bool {
	if named(name, []string{"k8s.io/client-go/rest.Client", "k8s.io/client-go/rest.HTTPClientFor", "k8s.io/client-go/rest.TransportFor", "k8s.io/client-go/rest.Request.Verb"}) {
		return true
	}
	f, ok := object.(*types.Func)
	if !ok || named(name, []string{"k8s.io/client-go/rest.Request.*", "k8s.io/client-go/tools/cache.*"}) {
		return false
	}
	if named(name, []string{"k8s.io/kubectl/*", "k8s.io/cli-runtime/*", "k8s.io/client-go/tools/events.*", "k8s.io/client-go/tools/record.NewBroadcaster*", "k8s.io/client-go/tools/record.EventRecorder*"}) {
		return true
	}
	signature := f.Signature()
	for v := range signature.Params().Variables() {
		if v.Type().String() == "context.Context" && strings.HasPrefix(name, "k8s.io/client-go/") {
			return true
		}
	}
	return !strings.HasPrefix(name, module) && signature.Results().Len() > 0 && signature.Results().At(0).Type().String() == "*k8s.io/client-go/rest.Request"
}
