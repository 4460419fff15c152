package queue_test

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nth-project/nth/test/internal/lab"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// These tests are about the manifest with nth-queue's rights in the cluster: it gives what nth-queue does, and of all verbs and resources
// nothing else. That it is enough shows in every other test of this package.

// newUser is a member of the group that the manifest is for, which newScene applies.
func newUser(t *testing.T) lab.Credential {
	t.Helper()
	return newScene(t).cp.AddUser(t, "arn:aws:sts::123456789012:assumed-role/nth-queue/i-0123456789abcdef0", "nth-queue")
}

// right is a verb on a resource, as "patch nodes/status" or, outside of the core group, "create roles.rbac.authorization.k8s.io".
type right = string

// needed is what nth-queue does, and all that it may do.
var needed = []right{
	"get nodes", "list nodes", "watch nodes", "patch nodes",
	"patch nodes/status",
	"list pods", "watch pods", "delete pods",
	"create pods/eviction",
	"get persistentvolumeclaims", "get persistentvolumes",
	"create events",
}

// ofLeases is what it does in a namespace of its own, and may do nowhere else.
var ofLeases = []right{"get leases", "create leases", "update leases"}

// everybodys is what everyone may do who has a credential: ask about himself.
var everybodys = []right{
	"create selfsubjectreviews.authentication.k8s.io",
	"create selfsubjectaccessreviews.authorization.k8s.io",
	"create selfsubjectrulesreviews.authorization.k8s.io",
}

// verbs are all that the API server knows, those among them that only stand for something.
var verbs = []string{
	"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection",
	"proxy", "bind", "escalate", "impersonate", "approve", "sign", "use", "*",
}

func TestRights_AreThoseThatAreNeededAndNoOthers(t *testing.T) {
	t.Parallel()
	user := newUser(t)
	var allowed []right
	resources := resourcesOf(t, user.Client)
	for _, resource := range resources {
		for _, verb := range verbs {
			if may(t, user.Client, verb, resource, "") {
				allowed = append(allowed, strings.TrimSuffix(verb+" "+resource.name+"."+resource.group, "."))
			}
		}
	}
	want := slices.Sorted(slices.Values(slices.Concat(needed, everybodys)))
	slices.Sort(allowed)
	if !slices.Equal(allowed, want) {
		t.Errorf("of %d verbs on %d resources these are allowed:\n%s\nwant:\n%s", len(verbs), len(resources),
			strings.Join(allowed, "\n"), strings.Join(want, "\n"))
	}
	if len(resources) < 80 {
		t.Errorf("the API server tells of %d resources only", len(resources))
	}
}

func TestRights_ToLeasesAreForTheirNamespaceAlone(t *testing.T) {
	t.Parallel()
	user := newUser(t)
	for namespace, want := range map[string][]right{"nth-queue": ofLeases, "kube-system": nil, "kube-node-lease": nil, "default": nil} {
		var allowed []right
		for _, resource := range resourcesOf(t, user.Client) {
			for _, verb := range verbs {
				if resource.group == "coordination.k8s.io" && may(t, user.Client, verb, resource, namespace) {
					allowed = append(allowed, verb+" "+resource.name)
				}
			}
		}
		slices.Sort(allowed)
		if want = slices.Sorted(slices.Values(want)); !slices.Equal(allowed, want) {
			t.Errorf("in %s these are allowed: %q, want %q", namespace, allowed, want)
		}
	}
	for _, resource := range resourcesOf(t, user.Client) {
		for _, verb := range []string{"get", "create", "delete"} {
			everywhere := slices.Contains(needed, strings.TrimSuffix(verb+" "+resource.name+"."+resource.group, "."))
			if resource.group == "" && !everywhere && may(t, user.Client, verb, resource, "nth-queue") {
				t.Errorf("in its namespace it may %s %s", verb, resource.name)
			}
		}
	}
}

type resource struct{ group, name string }

// resourcesOf lists everything that the API server has, subresources included, and a few names that it does not tell of.
func resourcesOf(t *testing.T, client kubernetes.Interface) []resource {
	t.Helper()
	_, lists, err := client.Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	found := map[resource]bool{
		{"", "users"}: true, {"", "groups"}: true, {"authentication.k8s.io", "uids"}: true,
		{"certificates.k8s.io", "signers"}: true, {"", "*"}: true, {"*", "*"}: true,
	}
	for _, list := range lists {
		group, _, versioned := strings.Cut(list.GroupVersion, "/")
		if !versioned {
			group = ""
		}
		for _, r := range list.APIResources {
			of := group
			if r.Group != "" && !strings.Contains(r.Name, "/") {
				of = r.Group
			}
			found[resource{of, r.Name}] = true
		}
	}
	return slices.SortedFunc(maps.Keys(found), func(a, b resource) int {
		return strings.Compare(a.group+"/"+a.name, b.group+"/"+b.name)
	})
}

// may asks the API server, for any name in a namespace, or in any if that is "".
func may(t *testing.T, client kubernetes.Interface, verb string, r resource, namespace string) bool {
	t.Helper()
	name, subresource, _ := strings.Cut(r.name, "/")
	answer, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), &authorizationv1.SelfSubjectAccessReview{
		Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: namespace, Verb: verb, Group: r.group, Resource: name, Subresource: subresource,
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return answer.Status.Allowed
}

// The table is what an administrator judges by before the manifest is applied.
func TestRights_AreListedInTheManual(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/queue.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "<!-- rights -->")
	table, _, _ = strings.Cut(table, "<!-- end -->")
	var listed []right
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z/, ]+)` \\| ([a-z, ]+) \\|").FindAllStringSubmatch(table, -1) {
		for resource := range strings.SplitSeq(row[1], ", ") {
			for verb := range strings.SplitSeq(row[2], ", ") {
				listed = append(listed, verb+" "+resource)
			}
		}
	}
	slices.Sort(listed)
	if want := slices.Sorted(slices.Values(slices.Concat(needed, ofLeases))); !slices.Equal(listed, want) {
		t.Errorf("docs/queue.md lists\n%s\nwant:\n%s", strings.Join(listed, "\n"), strings.Join(want, "\n"))
	}
}

// about are the lines of a check about rights in the cluster, as "patch nodes/status" is.
var about = regexp.MustCompile(`(?m)^(\S+) +right +((?:get|list|watch|create|update|patch|delete) [a-z/]+)`)

func TestRights_AreAskedForByTheCheck(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	consumer := s.start(t, "")
	consumer.Stop(t)
	var asked []right
	for _, line := range about.FindAllStringSubmatch(check(t, consumer), -1) {
		asked = append(asked, line[2])
		if line[1] != "ok" {
			t.Errorf("%s is %s", line[2], line[1])
		}
	}
	slices.Sort(asked)
	if want := slices.Sorted(slices.Values(slices.Concat(needed, ofLeases))); !slices.Equal(asked, want) {
		t.Errorf("it asks for\n%s\nwant:\n%s", strings.Join(asked, "\n"), strings.Join(want, "\n"))
	}
}
