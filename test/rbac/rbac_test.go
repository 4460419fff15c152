// Package rbac_test judges the manifest in packaging/kubernetes on a real API server: nth-queue can do its work with it, and
// may do nothing else, of all verbs and resources.
package rbac_test

import (
	"bytes"
	"context"
	"os"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/nth-project/nth/test/internal/lab"
)

const manifest = "../../packaging/kubernetes/nth-queue-rbac.yaml"

func TestMain(m *testing.M) { os.Exit(lab.Main(m, 4)) }

// applied applies the manifest, once for all tests.
var applied sync.Once

// newUser is somebody of the group that the manifest is for.
func newUser(t *testing.T) lab.Credential {
	t.Helper()
	cp := lab.Shared(t)
	applied.Do(func() {
		text, err := os.ReadFile(manifest)
		if err != nil {
			t.Fatal(err)
		}
		for document := range bytes.SplitSeq(text, []byte("\n---\n")) {
			apply(t, cp.Admin, document)
		}
	})
	return cp.AddUser(t, "arn:aws:sts::123456789012:assumed-role/nth-queue/i-0123456789abcdef0", "nth-queue")
}

func apply(t *testing.T, client kubernetes.Interface, document []byte) {
	t.Helper()
	object, _, err := scheme.Codecs.UniversalDeserializer().Decode(document, nil, nil)
	if err != nil {
		t.Fatalf("reading %s: %v", manifest, err)
	}
	if err := create(t.Context(), client, object); err != nil {
		t.Fatalf("applying %s: %v", manifest, err)
	}
}

func create(ctx context.Context, client kubernetes.Interface, object any) (err error) {
	switch o := object.(type) {
	case *rbacv1.ClusterRole:
		_, err = client.RbacV1().ClusterRoles().Create(ctx, o, metav1.CreateOptions{})
	case *rbacv1.ClusterRoleBinding:
		_, err = client.RbacV1().ClusterRoleBindings().Create(ctx, o, metav1.CreateOptions{})
	case *rbacv1.Role:
		_, err = client.RbacV1().Roles(o.Namespace).Create(ctx, o, metav1.CreateOptions{})
	case *rbacv1.RoleBinding:
		_, err = client.RbacV1().RoleBindings(o.Namespace).Create(ctx, o, metav1.CreateOptions{})
	case *corev1.Namespace:
		if _, err = client.CoreV1().Namespaces().Create(ctx, o, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
			return nil // The lab has made it.
		}
	case *corev1.ServiceAccount:
		_, err = client.CoreV1().ServiceAccounts(o.Namespace).Create(ctx, o, metav1.CreateOptions{})
	}
	return err
}
