package queue_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"
)

// These tests are about the manifest with nth-queue's rights in the cluster: it has what nth-queue asks for in its check, and nothing
// else. That this is enough shows in every other test of this package.

// granted are the rights of the manifest, sorted, as "patch nodes/status". Those to Leases are for the namespace nth-queue alone, and the
// others for the whole cluster.
func granted(t *testing.T) (rights []string) {
	t.Helper()
	text, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var role rbacv1.ClusterRole // or a Role, which has the same fields
		if err := yaml.Unmarshal([]byte(document), &role); err != nil {
			t.Fatal(err)
		}
		group := map[string]string{"": "", "nth-queue": "coordination.k8s.io"}[role.Namespace]
		for _, rule := range role.Rules {
			if !slices.Equal(rule.APIGroups, []string{group}) || rule.Resources == nil || rule.ResourceNames != nil || rule.NonResourceURLs != nil {
				t.Errorf("the %s has the rule %v", role.Kind, rule)
			}
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					rights = append(rights, verb+" "+resource)
				}
			}
		}
	}
	slices.Sort(rights)
	return rights
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
	var listed []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z/, ]+)` \\| ([a-z, ]+) \\|").FindAllStringSubmatch(table, -1) {
		for resource := range strings.SplitSeq(row[1], ", ") {
			for verb := range strings.SplitSeq(row[2], ", ") {
				listed = append(listed, verb+" "+resource)
			}
		}
	}
	slices.Sort(listed)
	if want := granted(t); !slices.Equal(listed, want) {
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
	said, err := consumer.Ask("check")
	if err != nil {
		t.Errorf("nth-queue check: %v\n%s", err, said)
	}
	var asked []string
	for _, line := range about.FindAllStringSubmatch(said, -1) {
		asked = append(asked, line[2])
		if line[1] != "ok" {
			t.Errorf("%s is %s", line[2], line[1])
		}
	}
	slices.Sort(asked)
	if want := granted(t); !slices.Equal(asked, want) {
		t.Errorf("it asks for\n%s\nwant:\n%s", strings.Join(asked, "\n"), strings.Join(want, "\n"))
	}
}
