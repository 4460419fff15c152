package lab

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/nth-project/nth/test/tools"
)

// A Credential is one identity at the API server.
type Credential struct {
	// Kubeconfig is the path of a kubeconfig that refers to Certificate.
	Kubeconfig string
	// Certificate is the path of the client certificate and its key, in one
	// file as the kubelet keeps its own.
	Certificate string
	// Client is a client with this identity and no limit on its own rate.
	Client kubernetes.Interface
}

// credential makes an identity and its files, which are named after file.
func (cp *ControlPlane) credential(file, user string, groups ...string) (Credential, error) {
	c := Credential{
		Kubeconfig:  filepath.Join(cp.Dir, file+".kubeconfig"),
		Certificate: filepath.Join(cp.Dir, file+".pem"),
	}
	certificate, err := cp.certify(c, certificateLife, user, groups...)
	if err != nil {
		return Credential{}, err
	}
	if err := clientcmd.WriteToFile(cp.kubeconfig(c), c.Kubeconfig); err != nil {
		return Credential{}, fmt.Errorf("writing the kubeconfig of %q: %w", user, err)
	}
	c.Client, err = kubernetes.NewForConfig(&rest.Config{
		Host: cp.Server, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: cp.authority.pem, CertData: certificate, KeyData: certificate},
	})
	if err != nil {
		return Credential{}, fmt.Errorf("making a client for %q: %w", user, err)
	}
	return c, nil
}

// Kubectl runs kubectl with the administrator's rights and something to read, and returns what it says.
func (cp *ControlPlane) Kubectl(t TB, input string, args ...string) string {
	t.Helper()
	command := cp.KubectlCommand(t.Context(), args...)
	command.Stdin = strings.NewReader(input)
	said, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %q: %v\n%s", args, err, said)
	}
	return string(said)
}

// KubectlCommand prepares a run of kubectl that ends with ctx.
func (cp *ControlPlane) KubectlCommand(ctx context.Context, args ...string) *exec.Cmd {
	path, err := tools.Path("kubectl")
	command := exec.CommandContext(ctx, path, append([]string{"--kubeconfig=" + cp.Kubeconfig}, args...)...)
	if err != nil {
		command.Err = err
	}
	return command
}

// Portable is the text of the kubeconfig for another machine: it refers to no file, but for what change makes of it, which may be nil.
func (c Credential) Portable(t TB, change func(*clientcmdapi.Config)) string {
	t.Helper()
	config, err := clientcmd.LoadFromFile(c.Kubeconfig)
	if err == nil {
		err = clientcmdapi.FlattenConfig(config)
	}
	if err != nil {
		t.Fatalf("reading a kubeconfig: %v", err)
	}
	if change != nil {
		change(config)
	}
	text, err := clientcmd.Write(*config)
	if err != nil {
		t.Fatalf("writing a kubeconfig: %v", err)
	}
	return string(text)
}

// certify writes a fresh certificate, good for so long, to the credential's file, and returns it.
func (cp *ControlPlane) certify(c Credential, life time.Duration, user string, groups ...string) ([]byte, error) {
	certificate, err := cp.authority.client(life, user, groups...)
	if err != nil {
		return nil, err
	}
	return certificate, writeFile(c.Certificate, certificate)
}

func (cp *ControlPlane) kubeconfig(c Credential) clientcmdapi.Config {
	const name = "lab"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: cp.Server, CertificateAuthorityData: cp.authority.pem}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificate: c.Certificate, ClientKey: c.Certificate}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	return *config
}
