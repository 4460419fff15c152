package apiserver

import (
	"context"
	"strings"

	authorization "k8s.io/api/authorization/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Right is something that is asked of the API server.
type Right struct {
	// For says what it is needed for.
	For string
	// Optional tells that a drain does not need it.
	Optional bool
	// Attributes are how the API server knows it.
	Attributes authorization.ResourceAttributes
}

// String is the right in the words of kubectl auth can-i.
func (r Right) String() string {
	a := r.Attributes
	words := []string{a.Verb, a.Resource}
	if a.Subresource != "" {
		words[1] += "/" + a.Subresource
	}
	if a.Name != "" {
		words = append(words, a.Name)
	}
	if a.Namespace != "" {
		words = append(words, "-n", a.Namespace)
	}
	return strings.Join(words, " ")
}

// Allowed asks the API server whether the client has the right. Admission may still refuse a single request. The error is
// client-go's.
func (r Right) Allowed(ctx context.Context, client kubernetes.Interface) (bool, error) {
	answer, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorization.SelfSubjectAccessReview{
		Spec: authorization.SelfSubjectAccessReviewSpec{ResourceAttributes: &r.Attributes},
	}, meta.CreateOptions{})
	if err != nil {
		return false, err
	}
	return answer.Status.Allowed, nil
}
