// Package plugin runs the exec plugin that a kubeconfig names, as client-go would, but so that a daemon can rely on it.
// client-go's own runner waits for a plugin without a limit, holds every request up meanwhile and remembers that in the
// process; here a plugin that does not end in time is killed with its process group, and can be run again.
//
// What a plugin is told and what it says are Kubernetes' formats:
// https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins
package plugin

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/pkg/apis/clientauthentication"
	"k8s.io/client-go/pkg/apis/clientauthentication/install"
	v1 "k8s.io/client-go/pkg/apis/clientauthentication/v1"
	"k8s.io/client-go/pkg/apis/clientauthentication/v1beta1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd/api"
)

// Limit is how long a plugin may take. The AWS CLI needs a second; where the metadata service or STS are slow, some more.
const Limit = 20 * time.Second

const (
	// lingering is how long a child of a plugin that has ended may hold its output open.
	lingering = time.Second
	// outputSize is the most that a plugin may say: a token, or a chain of certificates and a key.
	outputSize = 1 << 20
	// hintSize is the most of a kubeconfig's installHint that is told.
	hintSize = 300
)

// Credential is what a plugin says.
type Credential struct {
	// Token is a bearer token; empty if there is none.
	Token string
	// Certificate is a client certificate with its key; nil if there is none.
	Certificate *tls.Certificate
	// Expires is when the first of the two does; zero if they do not say.
	Expires time.Time
}

// Plugin is an exec plugin. It may be used from several goroutines, and is run as often as it is asked.
type Plugin struct {
	name     string // for people
	command  string
	args     []string
	env      []string
	hint     string
	version  schema.GroupVersion
	decoding kruntime.Decoder
}

// New returns the plugin of a client's configuration. launch, if it is not nil, changes how it is run; env is added to this
// process's environment, "NAME=value" each, and the kubeconfig's own goes before both.
func New(config *rest.Config, launch func(*api.ExecConfig), env []string) (*Plugin, error) {
	said := config.ExecProvider.DeepCopy()
	name := filepath.Base(said.Command)
	if said.InteractiveMode == api.AlwaysExecInteractiveMode {
		return nil, fmt.Errorf("the exec plugin %s wants a terminal (interactiveMode: Always), and a daemon has none", name)
	}
	info, version, decoding, err := protocol(config)
	if err != nil {
		return nil, fmt.Errorf("the exec plugin %s: %w", name, err)
	}
	if launch != nil {
		launch(said)
	}
	p := &Plugin{
		name: name, command: said.Command, args: said.Args, env: slices.Clone(env),
		hint: clipped(strings.Join(strings.Fields(said.InstallHint), " "), hintSize), version: version, decoding: decoding,
	}
	for _, variable := range said.Env {
		p.env = append(p.env, variable.Name+"="+variable.Value)
	}
	p.env = append(p.env, "KUBERNETES_EXEC_INFO="+info)
	return p, nil
}

// Name is the plugin's, without a path.
func (p *Plugin) Name() string { return p.name }

// protocol returns what the plugin of a configuration is told, and how what it says is read.
func protocol(config *rest.Config) (info string, version schema.GroupVersion, decoding kruntime.Decoder, err error) {
	switch config.ExecProvider.APIVersion {
	case v1.SchemeGroupVersion.String():
		version = v1.SchemeGroupVersion
	case v1beta1.SchemeGroupVersion.String():
		version = v1beta1.SchemeGroupVersion
	default:
		return "", version, nil, fmt.Errorf("its apiVersion is %q, and must be %q or %q",
			config.ExecProvider.APIVersion, v1.SchemeGroupVersion, v1beta1.SchemeGroupVersion)
	}
	scheme := kruntime.NewScheme()
	install.Install(scheme)
	codecs := serializer.NewCodecFactory(scheme)
	told := &clientauthentication.ExecCredential{}
	if config.ExecProvider.ProvideClusterInfo {
		if told.Spec.Cluster, err = rest.ConfigToExecCluster(config); err != nil {
			return "", version, nil, err
		}
	}
	text, err := kruntime.Encode(codecs.LegacyCodec(version), told)
	return string(text), version, codecs.UniversalDecoder(version), err
}

// Run runs the plugin, until it ends or ctx does; then it is killed, and the children that are in its process group with it.
// No error has anything of what the plugin wrote to its standard output.
func (p *Plugin) Run(ctx context.Context) (Credential, error) {
	stdout, stderr := &head{limit: outputSize}, &tail{limit: complaintSize}
	if err := p.run(ctx, stdout, stderr); err != nil {
		return Credential{}, err
	}
	answer := &clientauthentication.ExecCredential{}
	_, kind, err := p.decoding.Decode(stdout.text, nil, answer)
	switch {
	case kruntime.IsNotRegisteredError(err):
		return Credential{}, fmt.Errorf("the exec plugin %s prints another kind of object than an ExecCredential of %s", p.name, p.version)
	case err != nil, kind.Version == kruntime.APIVersionInternal: // The error's own text quotes what was read.
		return Credential{}, fmt.Errorf("the exec plugin %s prints no ExecCredential (%d bytes)%s", p.name, len(stdout.text), stderr)
	case kind.GroupVersion() != p.version:
		return Credential{}, fmt.Errorf("the exec plugin %s prints an ExecCredential of %s, and the kubeconfig says %s", p.name, kind.GroupVersion(), p.version)
	case answer.Status == nil:
		return Credential{}, fmt.Errorf("the exec plugin %s prints an ExecCredential without a status%s", p.name, stderr)
	}
	return p.read(answer.Status)
}

// run is Run without the reading.
func (p *Plugin) run(ctx context.Context, stdout *head, stderr *tail) error {
	cmd := exec.CommandContext(ctx, p.command, p.args...)
	cmd.Env = slices.Concat(cmd.Environ(), p.env)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	// The group is killed as one, and does not outlive this process. The kernel takes the end of the thread that has
	// started it for that.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	kill := func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Cancel, cmd.WaitDelay = kill, lingering
	began := time.Now()
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) { // It has ended, and a child of it has not.
		_ = kill() // the child may have gone by now
		if ctx.Err() == nil {
			err = nil
		}
	}
	exit, exited := errors.AsType[*exec.ExitError](err)
	absent, isAbsent := errors.AsType[*exec.Error](err)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("the exec plugin %s has not ended within %s and was killed: %w%s",
			p.name, time.Since(began).Round(time.Second/10), ctx.Err(), stderr)
	case stdout.full:
		return fmt.Errorf("the exec plugin %s prints more than %d bytes", p.name, outputSize)
	case isAbsent && errors.Is(absent, exec.ErrNotFound):
		return fmt.Errorf("the exec plugin %s not found%s", p.command, p.hint)
	case exited && exit.ExitCode() >= 0:
		return fmt.Errorf("the exec plugin %s failed with exit code %d%s", p.name, exit.ExitCode(), stderr)
	}
	return fmt.Errorf("the exec plugin %s: %w%s", p.name, err, stderr)
}

// read takes the credential from what the plugin said.
func (p *Plugin) read(said *clientauthentication.ExecCredentialStatus) (Credential, error) {
	c := Credential{Token: said.Token}
	if said.ExpirationTimestamp != nil {
		c.Expires = said.ExpirationTimestamp.Time
	}
	if (said.ClientCertificateData == "") != (said.ClientKeyData == "") {
		return Credential{}, fmt.Errorf("the exec plugin %s gives a certificate or its key, and not both", p.name)
	}
	if said.Token == "" && said.ClientKeyData == "" {
		return Credential{}, fmt.Errorf("the exec plugin %s gives neither a token nor a certificate", p.name)
	}
	if said.ClientKeyData == "" {
		return c, nil
	}
	pair, err := tls.X509KeyPair([]byte(said.ClientCertificateData), []byte(said.ClientKeyData))
	if err != nil {
		return Credential{}, fmt.Errorf("the exec plugin %s: reading its certificate: %w", p.name, err)
	}
	c.Certificate = &pair
	if end := pair.Leaf.NotAfter; c.Expires.IsZero() || end.Before(c.Expires) {
		c.Expires = end
	}
	return c, nil
}

// clipped returns a text for the end of a sentence, with ": " before it unless it is empty.
func clipped(text string, size int) string {
	if text == "" {
		return ""
	}
	return ": " + strings.ToValidUTF8(text[:min(len(text), size)], "")
}
