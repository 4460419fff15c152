// Package plugin runs the exec plugin of a kubeconfig, as client-go does, but fit for a daemon: client-go waits for a plugin
// without a timeout, and all requests wait with it. Here, a plugin that does not end in time is killed with its process group,
// and can be run again.
//
// The input and the output of a plugin are Kubernetes' formats:
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

// Timeout is how long a plugin may take. The AWS CLI needs a second, and more if the metadata service or STS is slow.
const Timeout = 20 * time.Second

const (
	// childTimeout is how long the child of a plugin that has ended may keep the plugin's output open.
	childTimeout = time.Second
	// outputLimit is the most that a plugin may print, in bytes: a token, or a certificate chain and a key.
	outputLimit = 1 << 20
	// hintLimit is the most that errors quote of a kubeconfig's installHint, in bytes.
	hintLimit = 300
)

// Credential is what a plugin prints.
type Credential struct {
	// Token is a bearer token; empty if there is none.
	Token string
	// Certificate is a client certificate with its key; nil if there is none.
	Certificate *tls.Certificate
	// Expires is when the first of the two expires; zero if neither says.
	Expires time.Time
}

// Plugin is an exec plugin. It may be used from several goroutines at once.
type Plugin struct {
	name    string // for errors
	command string
	args    []string
	env     []string
	hint    string
	version schema.GroupVersion
	decoder kruntime.Decoder
}

// New returns the plugin of a client's configuration. launch, if not nil, changes how it is run. env is added to this
// process's environment, as "NAME=value"; variables in the kubeconfig override both.
func New(config *rest.Config, launch func(*api.ExecConfig), env []string) (*Plugin, error) {
	spec := config.ExecProvider.DeepCopy()
	name := filepath.Base(spec.Command)
	if spec.InteractiveMode == api.AlwaysExecInteractiveMode {
		return nil, fmt.Errorf("the exec plugin %s wants a terminal (interactiveMode: Always), and a daemon has none", name)
	}
	info, version, decoder, err := protocol(config)
	if err != nil {
		return nil, fmt.Errorf("the exec plugin %s: %w", name, err)
	}
	if launch != nil {
		launch(spec)
	}
	p := &Plugin{
		name: name, command: spec.Command, args: spec.Args, env: slices.Clone(env),
		hint: clipped(strings.Join(strings.Fields(spec.InstallHint), " "), hintLimit), version: version, decoder: decoder,
	}
	for _, variable := range spec.Env {
		p.env = append(p.env, variable.Name+"="+variable.Value)
	}
	p.env = append(p.env, "KUBERNETES_EXEC_INFO="+info)
	return p, nil
}

// Name returns the plugin's command, without its directory.
func (p *Plugin) Name() string { return p.name }

// protocol returns the KUBERNETES_EXEC_INFO for the plugin of a configuration, and the decoder of its output.
func protocol(config *rest.Config) (info string, version schema.GroupVersion, decoder kruntime.Decoder, err error) {
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
	input := &clientauthentication.ExecCredential{}
	if config.ExecProvider.ProvideClusterInfo {
		if input.Spec.Cluster, err = rest.ConfigToExecCluster(config); err != nil {
			return "", version, nil, err
		}
	}
	text, err := kruntime.Encode(codecs.LegacyCodec(version), input)
	return string(text), version, codecs.UniversalDecoder(version), err
}

// Run runs the plugin. When ctx ends, the plugin is killed with its process group. No error shows any of the plugin's
// standard output.
func (p *Plugin) Run(ctx context.Context) (Credential, error) {
	stdout, stderr := &head{limit: outputLimit}, &tail{limit: stderrLimit}
	if err := p.run(ctx, stdout, stderr); err != nil {
		return Credential{}, err
	}
	answer := &clientauthentication.ExecCredential{}
	_, kind, err := p.decoder.Decode(stdout.text, nil, answer)
	switch {
	case kruntime.IsNotRegisteredError(err):
		return Credential{}, fmt.Errorf("the exec plugin %s prints another kind of object than an ExecCredential of %s", p.name, p.version)
	case err != nil, kind.Version == kruntime.APIVersionInternal: // The error would quote the output.
		return Credential{}, fmt.Errorf("the exec plugin %s prints no ExecCredential (%d bytes)%s", p.name, len(stdout.text), stderr)
	case kind.GroupVersion() != p.version:
		return Credential{}, fmt.Errorf("the exec plugin %s prints an ExecCredential of %s, and the kubeconfig says %s", p.name, kind.GroupVersion(), p.version)
	case answer.Status == nil:
		return Credential{}, fmt.Errorf("the exec plugin %s prints an ExecCredential without a status%s", p.name, stderr)
	}
	return p.read(answer.Status)
}

// run runs the plugin and collects its output.
func (p *Plugin) run(ctx context.Context, stdout *head, stderr *tail) error {
	cmd := exec.CommandContext(ctx, p.command, p.args...)
	cmd.Env = slices.Concat(cmd.Environ(), p.env)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	// The process group is killed as a whole. Pdeathsig kills the plugin with this process, but the kernel sends it when the
	// thread that started the plugin ends, so that this goroutine keeps its thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	kill := func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Cancel, cmd.WaitDelay = kill, childTimeout
	began := time.Now()
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) { // The plugin has ended, but not its child.
		_ = kill() // which fails if the child has ended meanwhile
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
		return fmt.Errorf("the exec plugin %s prints more than %d bytes", p.name, outputLimit)
	case isAbsent && errors.Is(absent, exec.ErrNotFound):
		return fmt.Errorf("the exec plugin %s not found%s", p.command, p.hint)
	case exited && exit.ExitCode() >= 0:
		return fmt.Errorf("the exec plugin %s failed with exit code %d%s", p.name, exit.ExitCode(), stderr)
	}
	return fmt.Errorf("the exec plugin %s: %w%s", p.name, err, stderr)
}

// read checks the credential in the plugin's output.
func (p *Plugin) read(status *clientauthentication.ExecCredentialStatus) (Credential, error) {
	c := Credential{Token: status.Token}
	if status.ExpirationTimestamp != nil {
		c.Expires = status.ExpirationTimestamp.Time
	}
	if (status.ClientCertificateData == "") != (status.ClientKeyData == "") {
		return Credential{}, fmt.Errorf("the exec plugin %s gives a certificate or its key, and not both", p.name)
	}
	if status.Token == "" && status.ClientKeyData == "" {
		return Credential{}, fmt.Errorf("the exec plugin %s gives neither a token nor a certificate", p.name)
	}
	if status.ClientKeyData == "" {
		return c, nil
	}
	pair, err := tls.X509KeyPair([]byte(status.ClientCertificateData), []byte(status.ClientKeyData))
	if err != nil {
		return Credential{}, fmt.Errorf("the exec plugin %s: reading its certificate: %w", p.name, err)
	}
	c.Certificate = &pair
	if end := pair.Leaf.NotAfter; c.Expires.IsZero() || end.Before(c.Expires) {
		c.Expires = end
	}
	return c, nil
}

// clipped returns ": " and the beginning of a text, for the end of an error; "" for an empty text.
func clipped(text string, limit int) string {
	if text == "" {
		return ""
	}
	return ": " + strings.ToValidUTF8(text[:min(len(text), limit)], "")
}
