package identity_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/identity"
)

func TestKubeletConfiguration_SaysHowItShutsDown(t *testing.T) {
	t.Parallel()
	const eks, kubeadm = "etc/kubernetes/kubelet/config.json", "var/lib/kubelet/config.yaml"
	for name, test := range map[string]struct {
		files map[string]string
		want  time.Duration
	}{
		"none":        {nil, 0},
		"not set":     {map[string]string{eks: `{"kind": "KubeletConfiguration"}`}, 0},
		"JSON":        {map[string]string{eks: `{"shutdownGracePeriod": "2m30s", "shutdownGracePeriodCriticalPods": "30s"}`}, 150 * time.Second},
		"YAML":        {map[string]string{kubeadm: "kind: KubeletConfiguration\nshutdownGracePeriod: 45s\n"}, 45 * time.Second},
		"off":         {map[string]string{kubeadm: "shutdownGracePeriod: 0s\n"}, 0},
		"a drop-in":   {map[string]string{eks: `{"shutdownGracePeriod": "1s"}`, eks + ".d/40-nodeadm.conf": `{"shutdownGracePeriod": "9s"}`}, 9 * time.Second},
		"the first":   {map[string]string{eks: `{}`, kubeadm: "shutdownGracePeriod: 45s\n"}, 0},
		"by priority": {map[string]string{eks: `{"shutdownGracePeriodByPodPriority": [{"shutdownGracePeriodSeconds": 10}, {"shutdownGracePeriodSeconds": 20}]}`}, 30 * time.Second},
		"a shorter one": {map[string]string{
			eks:                        `{"maxPods": 110, "shutdownGracePeriodByPodPriority": [{"shutdownGracePeriodSeconds": 30}]}`,
			eks + ".d/40-nodeadm.conf": `{"shutdownGracePeriodByPodPriority": [{"shutdownGracePeriodSeconds": 8}]}`,
		}, 8 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for path, text := range test.files {
				place(t, filepath.Join(root, path), []byte(text))
			}
			got, err := identity.ReadGracefulShutdown(root)
			if err != nil || got.Period != test.want {
				t.Errorf("got %+v, %v; want %s", got, err, test.want)
			}
		})
	}
}

func TestKubeletConfiguration_FaultNamesTheFile(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"shutdownGracePeriod: soon\n":                                     "soon",
		"shutdownGracePeriod: 5s\nshutdownGracePeriodCriticalPods: 10s\n": "shutdownGracePeriodCriticalPods is 10s, but must be",
		"shutdownGracePeriodCriticalPods: -1s\n":                          "shutdownGracePeriodCriticalPods is -1s, but must be",
	} {
		root := t.TempDir()
		place(t, filepath.Join(root, "var/lib/kubelet/config.yaml"), []byte(given))
		_, err := identity.ReadGracefulShutdown(root)
		wantError(t, err, "the kubelet's configuration", "/var/lib/kubelet/config.yaml", want)
	}
}

func TestBottlerocket_ContainerIsKnownByItsMounts(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if c, found := identity.FindContainer(root); found {
		t.Errorf("an empty directory is the host container %+v", c)
	}
	for _, dir := range []string{".bottlerocket/host-containers/current", ".bottlerocket/rootfs"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
		c, found := identity.FindContainer(root)
		folder := filepath.Join(root, ".bottlerocket/host-containers/current")
		if !found || filepath.Dir(c.UserData) != folder || filepath.Dir(c.StateDirectory) != folder {
			t.Errorf("the settings are in %s, the memory in %s", c.UserData, c.StateDirectory)
		}
		if superpowered := strings.HasSuffix(dir, "rootfs"); superpowered != (c.Host == filepath.Join(root, dir)) {
			t.Errorf("with %s, the host's files are at %q", dir, c.Host)
		}
	}
}
