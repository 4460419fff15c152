package rbac_test

import (
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nth-project/nth/pkg/sqs/sqstest"
	"github.com/nth-project/nth/test/internal/daemon"
	"github.com/nth-project/nth/test/internal/lab"
)

// newChecker returns what runs "nth-queue check" with other settings each time, for a user, and returns its lines.
func newChecker(t *testing.T, user lab.Credential) (check func(settings string) []string) {
	t.Helper()
	messages := sqstest.New()
	t.Cleanup(messages.Close)
	aws := httptest.NewServer(messages)
	t.Cleanup(aws.Close)
	consumer := daemon.StartQueue(t, daemon.QueueOptions{Kubeconfig: user.Kubeconfig, URL: messages.URL(), Endpoint: aws.URL})
	t.Cleanup(consumer.Kill)
	return func(settings string) []string {
		consumer.Configure(t, settings)
		said, err := consumer.Ask("check")
		lines := strings.Split(said, "\n")
		failed := slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, "fail ") })
		if failed != (err != nil) {
			t.Errorf("it ended with %v, and said\n%s", err, said)
		}
		return lines
	}
}

// about are the lines about rights in the cluster, as "patch nodes/status" is.
var about = regexp.MustCompile(`^(\S+) +right +((?:get|list|watch|create|update|patch|delete) [a-z/]+)`)

// rightsIn are the rights by their verdict.
func rightsIn(lines []string) map[string][]right {
	found := map[string][]right{}
	for _, line := range lines {
		if m := about.FindStringSubmatch(line); m != nil {
			found[m[1]] = append(found[m[1]], m[2])
		}
	}
	return found
}

func mustBe(t *testing.T, verdict string, got, want []right) {
	t.Helper()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%s is\n%s\nwant\n%s", verdict, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestCheckAsksForWhatTheManifestGivesAndNothingElse(t *testing.T) {
	t.Parallel()
	check := newChecker(t, newUser(t))
	found := rightsIn(check(""))
	mustBe(t, "ok", found["ok"], slices.Concat(needed, ofLeases))
	mustBe(t, "fail", found["fail"], nil)
	mustBe(t, "warn", found["warn"], nil)
}

func TestCheckTellsWhatIsRefusedAndHowBadThatIs(t *testing.T) {
	t.Parallel()
	check := newChecker(t, newReader(t))
	lines := check("")
	found := rightsIn(lines)
	mustBe(t, "ok", found["ok"], []right{"get nodes", "list nodes", "watch nodes", "list pods", "watch pods"})
	mustBe(t, "fail", found["fail"], slices.Concat([]right{"patch nodes", "create pods/eviction", "delete pods"}, ofLeases))
	mustBe(t, "warn", found["warn"], []right{
		"patch nodes/status", "create events", "patch events", "get persistentvolumeclaims", "get persistentvolumes",
	})
	for _, want := range []string{
		"ok    identity    reader, by ",
		"fail  right       patch nodes: refused; it is needed to cordon, taint and uncordon a node",
		"fail  right       update leases -n nth-queue: refused; it is needed to know who leads, and to lead",
		"fail  lease       making a Lease in the namespace nth-queue, as a dry run: ",
		"warn  right       create events: refused; nth-queue would use it to write Events, and works without",
	} {
		if !slices.ContainsFunc(lines, func(line string) bool { return strings.HasPrefix(line, want) }) {
			t.Errorf("it does not say %q:\n%s", want, strings.Join(lines, "\n"))
		}
	}

	found = rightsIn(check("[kubernetes]\ncondition = false\nevents = false\n"))
	mustBe(t, "what is asked for without extras", slices.Concat(found["ok"], found["fail"], found["warn"]), slices.Concat(ofLeases, []right{
		"get nodes", "list nodes", "watch nodes", "patch nodes", "list pods", "watch pods", "create pods/eviction", "delete pods",
		"get persistentvolumeclaims", "get persistentvolumes",
	}))
}

// newReader is somebody who may look at nodes and pods, and do nothing to them.
func newReader(t *testing.T) lab.Credential {
	t.Helper()
	cp := lab.Shared(t)
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{GenerateName: "reader-"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"list", "watch"}},
	}}
	role, err := cp.Admin.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = cp.Admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "reader"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return cp.AddUser(t, "reader")
}
