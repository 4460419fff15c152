package ec2_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/nth-project/nth/pkg/ec2"
	"github.com/nth-project/nth/pkg/ec2/ec2test"
	"github.com/nth-project/nth/pkg/role"
)

// region is EC2 and Auto Scaling behind one address.
type region struct {
	ec2    ec2test.Service
	mu     sync.Mutex
	tagged []string // groups that have the tag
	groups []string // what was asked about them
	denied bool     // nobody may ask about groups
}

func (r *region) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if err := q.ParseForm(); err == nil && q.PostForm.Get("Action") == "DescribeTags" {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.denied {
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, "<ErrorResponse><Error><Type>Sender</Type><Code>AccessDenied</Code><Message>no</Message></Error></ErrorResponse>")
			return
		}
		r.groups = append(r.groups, q.PostForm.Get("Filters.member.1.Values.member.1"))
		var tags strings.Builder
		for _, group := range r.tagged {
			fmt.Fprintf(&tags, "<member><ResourceId>%s</ResourceId><Key>managed</Key></member>", group)
		}
		fmt.Fprintf(w, "<DescribeTagsResponse><DescribeTagsResult><Tags>%s</Tags></DescribeTagsResult></DescribeTagsResponse>", &tags)
		return
	}
	r.ec2.ServeHTTP(w, q)
}

var credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
	return aws.Credentials{AccessKeyID: "AKIDTEST", SecretAccessKey: "secret"}, nil
})

// ask returns a catalog of a region, which looks for the tag "managed".
func ask(t *testing.T, tag string) (*ec2.Catalog, *region) {
	t.Helper()
	r := &region{}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	return ec2.New(ec2.Options{
		AWS: aws.Config{
			Region: "eu-central-1", BaseEndpoint: &server.URL, Credentials: credentials, HTTPClient: role.Unhurried(nil),
		}, Tag: tag,
	}), r
}

func inGroup(group string) map[string]string {
	return map[string]string{"aws:autoscaling:groupName": group}
}

func TestAnInstanceIsManagedByItsTagOrByThatOfItsGroup(t *testing.T) {
	t.Parallel()
	catalog, r := ask(t, "managed")
	r.tagged = []string{"workers"}
	r.ec2.Add(
		ec2test.Instance{ID: "i-1", State: "running", Address: "10.0.0.1", Tags: map[string]string{"managed": ""}},
		ec2test.Instance{ID: "i-2", State: "running", Tags: inGroup("workers")},
		ec2test.Instance{ID: "i-3", State: "stopping", Tags: inGroup("others")},
		ec2test.Instance{ID: "i-4", State: "terminated"},
	)
	for id, want := range map[string]string{
		"i-1": "{i-1 running 10.0.0.1 true []} true",
		"i-2": "{i-2 running  true []} true",
		"i-3": "{i-3 stopping  false []} true",
		"i-4": "{i-4 terminated  false []} true",
		"i-5": "{   false []} false",
	} {
		found, known, err := catalog.Look(t.Context(), id)
		if got := fmt.Sprint(found, known); got != want || err != nil {
			t.Errorf("%s is %s (%v), want %s", id, got, err, want)
		}
	}
}

func TestAnInstanceIsOfTheClustersThatItsTagsName(t *testing.T) {
	t.Parallel()
	catalog, r := ask(t, "")
	r.ec2.Add(
		ec2test.Instance{ID: "i-1", State: "running", Tags: map[string]string{"kubernetes.io/cluster/shop": "owned", "Name": "kubernetes.io/cluster/no"}},
		ec2test.Instance{ID: "i-2", State: "running", Tags: map[string]string{"kubernetes.io/cluster/shop": "shared", "kubernetes.io/cluster/till": ""}},
		ec2test.Instance{ID: "i-3", State: "running", Tags: map[string]string{"kubernetes.io/cluster/": "owned", "kubernetes.io/clusters/no": ""}},
	)
	for id, want := range map[string][]string{"i-1": {"shop"}, "i-2": {"shop", "till"}, "i-3": nil, "i-4": nil} {
		found, _, err := catalog.Look(t.Context(), id)
		if slices.Sort(found.Clusters); !slices.Equal(found.Clusters, want) || err != nil {
			t.Errorf("%s is of the clusters %q (%v), want %q", id, found.Clusters, err, want)
		}
	}
}

// What concerns a group concerns no instance that is in none, or has the tag itself.
func TestAGroupThatCannotBeAskedAboutHidesOnlyItsInstances(t *testing.T) {
	t.Parallel()
	catalog, r := ask(t, "managed")
	r.denied, r.tagged = true, []string{"workers"}
	r.ec2.Add(
		ec2test.Instance{ID: "i-1", State: "running", Tags: map[string]string{"managed": ""}},
		ec2test.Instance{ID: "i-2", State: "running", Tags: inGroup("workers")},
		ec2test.Instance{ID: "i-3", State: "running"},
	)
	look := func(want map[string]bool) {
		t.Helper()
		var all sync.WaitGroup
		for id, answered := range want {
			all.Go(func() {
				if found, _, err := catalog.Look(t.Context(), id); (err == nil) != answered || answered && found.Managed != (id != "i-3") {
					t.Errorf("%s is %+v: %v", id, found, err)
				}
			})
		}
		all.Wait()
	}
	look(map[string]bool{"i-1": true, "i-2": false, "i-3": true})
	asked := len(r.ec2.Asked())
	r.mu.Lock()
	r.denied = false
	r.mu.Unlock()
	look(map[string]bool{"i-1": true, "i-2": true, "i-3": true})
	if again := len(r.ec2.Asked()) - asked; again > 0 {
		t.Errorf("EC2 was asked %d times more about what it had said", again)
	}
}

func TestWithoutATagEverythingIsManagedAndNoGroupIsAskedAbout(t *testing.T) {
	t.Parallel()
	catalog, r := ask(t, "")
	r.ec2.Add(ec2test.Instance{ID: "i-1", State: "running", Tags: inGroup("workers")})
	if found, _, err := catalog.Look(t.Context(), "i-1"); err != nil || !found.Managed || len(r.groups) > 0 {
		t.Errorf("it is %+v (%v), and the groups %v were asked about", found, err, r.groups)
	}
}

func TestManyQuestionsAreOneRequestAndAnAnswerIsRemembered(t *testing.T) {
	t.Parallel()
	catalog, r := ask(t, "managed")
	const many = 100
	for i := range many {
		r.ec2.Add(ec2test.Instance{ID: fmt.Sprintf("i-%d", i), State: "running", Tags: inGroup("workers")})
	}
	look := func() {
		var all sync.WaitGroup
		for i := range many + 1 { // The last one is unknown.
			all.Go(func() {
				if _, known, err := catalog.Look(t.Context(), fmt.Sprintf("i-%d", i)); err != nil || known != (i < many) {
					t.Errorf("instance %d: %t, %v", i, known, err)
				}
			})
		}
		all.Wait()
	}
	look()
	look()
	total := 0
	for _, values := range r.ec2.Asked() {
		total += len(values)
	}
	if requests := len(r.ec2.Asked()); requests > 5 || total != many+1 {
		t.Errorf("%d requests asked about %d instances", requests, total)
	}
	if len(r.groups) > 5 {
		t.Errorf("%d requests asked about one group", len(r.groups))
	}
}

func TestWhatIsThrottledIsRepeated(t *testing.T) {
	t.Parallel()
	catalog, r := ask(t, "")
	r.ec2.Add(ec2test.Instance{ID: "i-1", State: "running"})
	r.ec2.Throttle(2)
	if _, known, err := catalog.Look(t.Context(), "i-1"); err != nil || !known {
		t.Errorf("%t, %v", known, err)
	}
}

func TestTheInstancesOfAReservationAreFoundOnAllPages(t *testing.T) {
	t.Parallel()
	catalog, r := ask(t, "managed")
	r.denied = true // Whether they are managed is asked of each, by whoever wants to know.
	r.ec2.Page(2)
	for i := range 5 {
		r.ec2.Add(ec2test.Instance{ID: fmt.Sprintf("i-%d", i), State: "running", Reservation: "cr-1", Tags: inGroup("workers")})
	}
	r.ec2.Add(ec2test.Instance{ID: "i-gone", State: "terminated", Reservation: "cr-1"}, ec2test.Instance{ID: "i-other", Reservation: "cr-2"})
	found, err := catalog.InReservation(t.Context(), "cr-1")
	if err != nil || len(found) != 5 {
		t.Errorf("found %v (%v)", found, err)
	}
}

func TestAnAnswerThatMakesNoSenseIsAnError(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }))
	t.Cleanup(server.Close)
	catalog := ec2.New(ec2.Options{AWS: aws.Config{Region: "eu-central-1", BaseEndpoint: &server.URL, Credentials: aws.AnonymousCredentials{}}})
	if _, _, err := catalog.Look(t.Context(), "i-1"); err == nil || !strings.HasPrefix(err.Error(), "asking EC2 about i-1: ") {
		t.Errorf("the error is %v", err)
	}
}

func mustBeAllowed(t *testing.T, catalog *ec2.Catalog, right ec2.Right, want bool) {
	t.Helper()
	if allowed, err := catalog.CheckPermission(t.Context(), right); allowed != want || err != nil {
		t.Errorf("%s is allowed: %t (%v), want %t", right, allowed, err, want)
	}
}

func TestRightsAreTriedWithoutAskingAboutAnyInstance(t *testing.T) {
	t.Parallel()
	catalog, r := ask(t, "managed")
	mustBeAllowed(t, catalog, ec2.DescribeInstances, true)
	mustBeAllowed(t, catalog, ec2.DescribeInstanceStatus, true)
	mustBeAllowed(t, catalog, ec2.DescribeTags, true)
	if asked := r.ec2.Asked(); len(asked) > 0 {
		t.Errorf("EC2 was asked about %v", asked)
	}
	r.ec2.Deny()
	mustBeAllowed(t, catalog, ec2.DescribeInstances, false)
	mustBeAllowed(t, catalog, ec2.DescribeInstanceStatus, false)
	mustBeAllowed(t, catalog, ec2.DescribeTags, true)
	r.mu.Lock()
	r.denied = true
	r.mu.Unlock()
	mustBeAllowed(t, catalog, ec2.DescribeTags, false)
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
	for _, right := range []ec2.Right{ec2.DescribeInstances, ec2.DescribeInstanceStatus, ec2.DescribeTags} {
		if allowed, err := ec2.New(ec2.Options{AWS: cfg}).CheckPermission(t.Context(), right); allowed || err == nil {
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

func TestAtAddress_FindsTheInstancesOfAnyVPC(t *testing.T) {
	t.Parallel()
	catalog, r := ask(t, "")
	r.ec2.Add(ec2test.Instance{ID: "i-1", State: "running", Address: "10.0.0.1"}, ec2test.Instance{ID: "i-2", State: "running", Address: "10.0.0.1"},
		ec2test.Instance{ID: "i-3", State: "running", Address: "10.0.0.3"})
	for address, want := range map[string]int{"10.0.0.1": 2, "10.0.0.3": 1, "10.0.0.4": 0} {
		if found, err := catalog.AtAddress(t.Context(), address); err != nil || len(found) != want {
			t.Errorf("at %s are %v (%v), want %d", address, found, err, want)
		}
	}
}
