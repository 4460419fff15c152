package strangers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nth-project/nth/test/tools"
)

// TestKubernetes_RulesHold runs what Kubernetes itself says of evictions and of a kubelet's rights, which nth relies on. Its tests start an API
// server of their own and evict by themselves: nth is not in them, and could not be without an edit.
func TestKubernetes_RulesHold(t *testing.T) {
	if os.Getenv("NTH_NIGHTLY") == "" {
		t.Log("only \"make strangers\" runs the tests of Kubernetes")
		return
	}
	etcd, err := tools.Path("etcd")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.Abs("../tools/kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	files, version := module(t, dir, "k8s.io/kubernetes")
	env := []string{
		"CGO_ENABLED=0", "GOFLAGS=-trimpath", "PATH=" + filepath.Dir(etcd) + ":" + os.Getenv("PATH"),
		// Where its tests find files of theirs in spite of -trimpath: pkgPath in cmd/kube-apiserver/app/testing/testserver.go.
		"TEST_WORKSPACE=.", "TEST_SRCDIR=" + strings.TrimSuffix(files, "/k8s.io/kubernetes@"+version),
	}
	const tests = "k8s.io/kubernetes/test/integration/"
	runGo(t, dir, "kubernetes "+version+", test/integration/evictions, without nth", nil, env, tests+"evictions")
	runGo(t, dir, "kubernetes "+version+", the node authorizer's tests, without nth", nil, env, "-run", "TestNode", tests+"auth")
}
