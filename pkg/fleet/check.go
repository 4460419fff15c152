package fleet

import (
	"context"
	"fmt"
	"time"

	authentication "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// User asks the API server who the client is. One that is older than 1.28 does not say; that is "".
func User(ctx context.Context, client kubernetes.Interface) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authentication.SelfSubjectReview{}, metav1.CreateOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("asking whose credential it is: %w", err)
	}
	return review.Status.UserInfo.Username, nil
}

// Census is how many Nodes the cluster has, how many of them may be of any EC2 instance for what they say, and how many are of none.
type Census struct {
	All, Anonymous, Elsewhere int
	// Instances are some of those that the others tell.
	Instances []string
}

// someInstances is how many instances a census names, at most.
const someInstances = 200

// Count counts the Nodes of the cluster.
func Count(ctx context.Context, client kubernetes.Interface) (Census, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*attemptTimeout)
	defer cancel()
	var found Census
	for next := ""; ; {
		list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{Limit: page, Continue: next})
		if err != nil {
			return Census{}, fmt.Errorf("listing the nodes: %w", err)
		}
		for i := range list.Items {
			found.All++
			provider := list.Items[i].Spec.ProviderID
			if id := instanceOf(provider); silent(provider) {
				found.Anonymous++
			} else if id == "" {
				found.Elsewhere++
			} else if len(found.Instances) < someInstances {
				found.Instances = append(found.Instances, id)
			}
		}
		if next = list.Continue; next == "" {
			return found, nil
		}
	}
}

// Endurance is how long a message is tried again and again whose work fails each time, until it has been received so
// often.
func Endurance(receives int) time.Duration {
	var pauses time.Duration
	for n := range receives {
		pauses += retryPause(n + 1)
	}
	return pauses
}

// UrgentReceives is how often a message is received whose work fails each time, from so long before its deadline until then.
func UrgentReceives(notice time.Duration) int {
	receives := 0
	for left := notice; left > 0; receives++ {
		left -= pauseBefore(left, retryPause(receives+1))
	}
	return receives
}
