package identity_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nth-project/nth/pkg/identity"
	"github.com/nth-project/nth/pkg/identity/bottlerockettest"
)

// container makes a host container, with a root directory that holds these directories.
func container(t *testing.T, dirs ...string) identity.Container {
	t.Helper()
	root, err := os.MkdirTemp("", "nth") //nolint:usetesting // t.TempDir can be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	for _, dir := range append(dirs, "run", ".bottlerocket/host-containers/current") {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	found, is := identity.FindContainer(root)
	if !is {
		t.Fatal("it is no host container")
	}
	return found
}

func serve(t *testing.T, c identity.Container) *bottlerockettest.API {
	t.Helper()
	api, err := bottlerockettest.Listen(string(c.API), map[string]string{
		"settings.kubernetes.api-server":          "https://ABC.eks.amazonaws.com",
		"settings.kubernetes.cluster-certificate": "LS0tLS1CRUdJTg==",
		"settings.kubernetes.cluster-name":        "production",
		"settings.kubernetes.authentication-mode": "aws",
		"settings.kubernetes.bootstrap-token":     "nobody's business",
		"settings.aws.region":                     "eu-central-1",
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(api.Close)
	return api
}

func TestBottlerocket_ContainerIsKnownByItsMounts(t *testing.T) {
	t.Parallel()
	if c, found := identity.FindContainer(t.TempDir()); found {
		t.Errorf("an empty directory is the host container %+v", c)
	}
	normal, superpowered := container(t), container(t, ".bottlerocket/rootfs")
	if normal.Host != "" || !strings.HasSuffix(superpowered.Host, "/.bottlerocket/rootfs") {
		t.Errorf("the host's file system is at %q in a normal one, and at %q in a superpowered one", normal.Host, superpowered.Host)
	}
	folder := filepath.Dir(normal.UserData)
	if filepath.Base(folder) != "current" || filepath.Dir(normal.StateDirectory) != folder {
		t.Errorf("the settings are in %s, the memory in %s", normal.UserData, normal.StateDirectory)
	}
}

func TestBottlerocket_KubeconfigIsMadeOfTheSettings(t *testing.T) {
	t.Parallel()
	c := container(t)
	api := serve(t, c)
	from, text, err := c.API.Kubeconfig(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Clusters []struct {
			Cluster map[string]string
		}
		Users []struct {
			User struct {
				Exec struct {
					Command string
					Args    []string
				}
			}
		}
	}
	if err := json.Unmarshal(text, &config); err != nil {
		t.Fatal(err)
	}
	cluster, exec := config.Clusters[0].Cluster, config.Users[0].User.Exec
	if cluster["server"] != "https://ABC.eks.amazonaws.com" || cluster["certificate-authority-data"] != "LS0tLS1CRUdJTg==" {
		t.Errorf("cluster %v", cluster)
	}
	if got := exec.Command + " " + strings.Join(exec.Args, " "); got != "/usr/bin/aws-iam-authenticator token -i production --region eu-central-1" {
		t.Errorf("exec plugin %s", got)
	}
	if from != "the settings at "+string(c.API) {
		t.Errorf("it is from %s", from)
	}
	if asked := api.Asked(); len(asked) != 1 || strings.Contains(asked[0], "bootstrap-token") {
		t.Errorf("asked: %q", asked)
	}
	api.Set("settings.aws.region", "")
	if _, text, err := c.API.Kubeconfig(t.Context()); err != nil || strings.Contains(string(text), "--region") {
		t.Errorf("without a region: %v\n%s", err, text)
	}
}

func TestBottlerocket_SettingsMayComeLater(t *testing.T) {
	t.Parallel()
	c := container(t)
	if _, _, err := c.API.Kubeconfig(t.Context()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a socket: %v", err)
	}
	api := serve(t, c)
	for _, key := range []string{"api-server", "cluster-certificate", "cluster-name"} {
		api.Set("settings.kubernetes."+key, "")
		if _, _, err := c.API.Kubeconfig(t.Context()); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("without %s: %v", key, err)
		}
		api.Set("settings.kubernetes."+key, "something")
	}
	if _, _, err := c.API.Kubeconfig(t.Context()); err != nil {
		t.Errorf("with all of them: %v", err)
	}
}

func TestBottlerocket_CertificateNeedsSuperpowers(t *testing.T) {
	t.Parallel()
	c := container(t)
	serve(t, c).Set("settings.kubernetes.authentication-mode", "tls")
	_, _, err := c.API.Kubeconfig(t.Context())
	if err == nil || !strings.Contains(err.Error(), "superpowered") || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error: %v", err)
	}
}
