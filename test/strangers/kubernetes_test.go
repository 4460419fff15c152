package strangers

import (
	"os"
	"path/filepath"
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
	files := module(t, dir, "k8s.io/kubernetes")
	env := []string{
		"CGO_ENABLED=0", "GOFLAGS=-trimpath", "PATH=" + filepath.Dir(etcd) + ":" + os.Getenv("PATH"),
		// Where its tests find files of theirs in spite of -trimpath: pkgPath in cmd/kube-apiserver/app/testing/testserver.go.
		"TEST_WORKSPACE=.", "TEST_SRCDIR=" + filepath.Dir(filepath.Dir(files)),
	}
	const tests = "k8s.io/kubernetes/test/integration/"
	runGo(t, dir, nil, env, tests+"evictions")
	runGo(t, dir, nil, env, "-run", "TestNode", tests+"auth")
}
