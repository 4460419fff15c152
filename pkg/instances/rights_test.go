package instances_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/nth-project/nth/pkg/instances"
	"github.com/nth-project/nth/pkg/instances/ec2test"
)

func mustBeAllowed(t *testing.T, catalog *instances.Catalog, right instances.Right, want bool) {
	t.Helper()
	if allowed, err := catalog.May(t.Context(), right); allowed != want || err != nil {
		t.Errorf("%s is allowed: %t (%v), want %t", right, allowed, err, want)
	}
}

func TestRightsAreTriedWithoutAskingAboutAnyInstance(t *testing.T) {
	t.Parallel()
	catalog, r := ask(t, "managed")
	mustBeAllowed(t, catalog, instances.DescribeInstances, true)
	mustBeAllowed(t, catalog, instances.DescribeInstanceStatus, true)
	mustBeAllowed(t, catalog, instances.DescribeTags, true)
	if asked := r.ec2.Asked(); len(asked) > 0 {
		t.Errorf("EC2 was asked about %v", asked)
	}
	r.ec2.Deny()
	mustBeAllowed(t, catalog, instances.DescribeInstances, false)
	mustBeAllowed(t, catalog, instances.DescribeInstanceStatus, false)
	mustBeAllowed(t, catalog, instances.DescribeTags, true)
	r.mu.Lock()
	r.denied = true
	r.mu.Unlock()
	mustBeAllowed(t, catalog, instances.DescribeTags, false)
}

func TestARightThatCannotBeTriedIsAnError(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	cfg := aws.Config{
		Region: "eu-central-1", BaseEndpoint: &server.URL,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{}, context.Canceled
		}),
	}
	for _, right := range []instances.Right{instances.DescribeInstances, instances.DescribeInstanceStatus, instances.DescribeTags} {
		if allowed, err := instances.New(instances.Options{AWS: cfg}).May(t.Context(), right); allowed || err == nil {
			t.Errorf("%s is allowed: %t (%v), want an error", right, allowed, err)
		}
	}
}

func TestGroupsAndClustersAreFoundByTheInstancesInThem(t *testing.T) {
	t.Parallel()
	catalog, r := ask(t, "")
	both := inGroup("workers")
	both["kubernetes.io/cluster/shop"] = "owned"
	r.ec2.Add(
		ec2test.Instance{ID: "i-1", State: "running"}, ec2test.Instance{ID: "i-2", State: "running", Tags: both},
		ec2test.Instance{ID: "i-3", State: "running", Tags: both}, ec2test.Instance{ID: "i-4", State: "running", Tags: inGroup("others")},
	)
	for want, ids := range map[string][]string{
		"[] []": {"i-1"}, "[workers] [shop]": {"i-1", "i-2", "i-3"}, "[others workers] [shop]": {"i-2", "i-4"},
	} {
		groups, clusters, err := catalog.Marks(t.Context(), ids)
		if got := fmt.Sprint(groups, clusters); got != want || err != nil {
			t.Errorf("%v are in %s (%v), want %s", ids, got, err, want)
		}
	}
	r.ec2.Deny()
	if groups, clusters, err := catalog.Marks(t.Context(), []string{"i-2"}); err == nil {
		t.Errorf("who may not ask is told %v, %v", groups, clusters)
	}
}
