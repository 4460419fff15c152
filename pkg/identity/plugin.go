package identity

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode"

	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/pkg/apis/clientauthentication"
	"k8s.io/client-go/pkg/apis/clientauthentication/install"
	v1 "k8s.io/client-go/pkg/apis/clientauthentication/v1"
	"k8s.io/client-go/pkg/apis/clientauthentication/v1beta1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/text"
)

const (
	// outputLimit is the most that a plugin may print, in bytes: a token, or a certificate chain and a key.
	outputLimit = 1 << 20
	// quoteLimit is the most that errors quote of what a plugin prints on its standard error, or of a kubeconfig's installHint, in bytes.
	quoteLimit = 500
)

// secret is what a plugin prints.
type secret struct {
	token       string           // empty if there is none
	certificate *tls.Certificate // with its key; nil if there is none
	expires     time.Time        // when the first of the two expires; zero if neither says
}

// plugin runs the exec plugin of a kubeconfig, as client-go does, but fit for a daemon: client-go waits for a plugin without a limit, and
// all requests wait with it. This one is killed with its process group when it does not end in time, and can be run again. It may be used
// from several goroutines at once.
//
// The input and the output of a plugin are Kubernetes' formats:
// https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins
type plugin struct {
	name    string // for errors
	command string
	args    []string
	env     []string
	root    string // the directory that the plugin sees as "/"; "" for this process's
	hint    string
	version schema.GroupVersion
	decoder kruntime.Decoder
}

// newPlugin returns the plugin of a client's configuration. env is added to this process's environment, as "NAME=value"; variables in
// the kubeconfig override both.
func newPlugin(config *rest.Config, root string, env []string) (*plugin, error) {
	spec := config.ExecProvider
	name := filepath.Base(spec.Command)
	if spec.InteractiveMode == api.AlwaysExecInteractiveMode {
		return nil, fmt.Errorf("the exec plugin %s wants a terminal (interactiveMode: Always), and a daemon has none", name)
	}
	info, version, decoder, err := protocol(config)
	if err != nil {
		return nil, fmt.Errorf("the exec plugin %s: %w", name, err)
	}
	p := &plugin{
		name: name, command: spec.Command, args: spec.Args, root: root,
		hint: spec.InstallHint, version: version, decoder: decoder,
	}
	p.env = (&exec.Cmd{}).Environ()
	if root != "" { // The trusted authorities in the environment are for this process's root.
		p.env = slices.DeleteFunc(p.env, func(v string) bool { return strings.HasPrefix(v, "SSL_CERT_") })
	}
	p.env = append(p.env, env...)
	for _, variable := range spec.Env {
		p.env = append(p.env, variable.Name+"="+variable.Value)
	}
	p.env = append(p.env, "KUBERNETES_EXEC_INFO="+info)
	return p, nil
}

// protocol returns the KUBERNETES_EXEC_INFO for the plugin of a configuration, and the decoder of its output.
func protocol(config *rest.Config) (info string, version schema.GroupVersion, decoder kruntime.Decoder, err error) {
	switch config.ExecProvider.APIVersion {
	case v1.SchemeGroupVersion.String():
		version = v1.SchemeGroupVersion
	case v1beta1.SchemeGroupVersion.String():
		version = v1beta1.SchemeGroupVersion
	default:
		return "", version, nil, fmt.Errorf("its apiVersion must be %q or %q", v1.SchemeGroupVersion, v1beta1.SchemeGroupVersion)
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

// run runs the plugin. When ctx ends, the plugin is killed with its process group. No error shows any of the plugin's standard output.
func (p *plugin) run(ctx context.Context) (secret, error) {
	stdout, stderr := &head{limit: outputLimit}, &tail{}
	if err := p.start(ctx, stdout, stderr); err != nil {
		return secret{}, err
	}
	return p.decode(stdout.text, stderr)
}

// decode reads what the plugin has printed.
func (p *plugin) decode(stdout []byte, stderr *tail) (secret, error) {
	answer := &clientauthentication.ExecCredential{}
	_, kind, err := p.decoder.Decode(stdout, nil, answer)
	switch {
	case kruntime.IsNotRegisteredError(err):
		return secret{}, fmt.Errorf("the exec plugin %s prints another kind of object than an ExecCredential of %s", p.name, p.version)
	case err != nil, kind.Version == kruntime.APIVersionInternal: // The error would quote the output.
		return secret{}, fmt.Errorf("the exec plugin %s prints no ExecCredential (%d bytes)%s", p.name, len(stdout), stderr)
	case kind.GroupVersion() != p.version:
		return secret{}, fmt.Errorf("the exec plugin %s prints an ExecCredential of another version than %s", p.name, p.version)
	case answer.Status == nil:
		return secret{}, fmt.Errorf("the exec plugin %s prints an ExecCredential without a status%s", p.name, stderr)
	}
	return p.read(answer.Status)
}

// start runs the plugin and collects its output.
func (p *plugin) start(ctx context.Context, stdout *head, stderr *tail) error {
	path, err := p.path()
	if err != nil {
		return fmt.Errorf("the exec plugin %s not found%s", p.name, quoted(p.hint))
	}
	cmd := exec.CommandContext(ctx, path, p.args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = p.env, stdout, stderr
	// The process group is killed as a whole. Pdeathsig kills the plugin with this process, but the kernel sends it when the
	// thread that started the plugin ends, so that this goroutine keeps its thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Chroot: p.root}
	if p.root != "" {
		cmd.Dir = "/"
	}
	kill := func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Cancel, cmd.WaitDelay = kill, kube.PluginChild
	began := time.Now()
	err = cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) { // The plugin has ended, but not its child.
		_ = kill() // which fails if the child has ended meanwhile
		if ctx.Err() == nil {
			err = nil
		}
	}
	exit, exited := errors.AsType[*exec.ExitError](err)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("the exec plugin %s has not ended within %s and was killed: %w%s",
			p.name, time.Since(began).Round(time.Second/10), ctx.Err(), stderr)
	case stdout.full:
		return fmt.Errorf("the exec plugin %s prints more than %d bytes", p.name, outputLimit)
	case exited && exit.ExitCode() >= 0:
		return fmt.Errorf("the exec plugin %s failed with exit code %d%s", p.name, exit.ExitCode(), stderr)
	}
	return fmt.Errorf("the exec plugin %s: %w%s", p.name, err, stderr)
}

// path returns where the plugin is, as seen from its root. A name without a slash is looked for in PATH.
func (p *plugin) path() (string, error) {
	if p.root == "" {
		return exec.LookPath(p.command)
	}
	places := []string{p.command}
	if !strings.Contains(p.command, "/") {
		places = nil
		for _, variable := range (&exec.Cmd{}).Environ() {
			if path, is := strings.CutPrefix(variable, "PATH="); is {
				for _, dir := range filepath.SplitList(path) {
					places = append(places, filepath.Join("/", dir, p.command))
				}
			}
		}
	}
	for _, place := range places {
		// A link may lead to somewhere else as seen from here.
		if found, err := os.Lstat(filepath.Join(p.root, place)); err == nil && !found.IsDir() && (found.Mode()&fs.ModeSymlink != 0 || found.Mode()&0o111 != 0) {
			return place, nil
		}
	}
	return "", exec.ErrNotFound
}

// read checks the credential in the plugin's output.
func (p *plugin) read(status *clientauthentication.ExecCredentialStatus) (secret, error) {
	c := secret{token: status.Token}
	if status.ExpirationTimestamp != nil {
		c.expires = status.ExpirationTimestamp.Time
	}
	if (status.ClientCertificateData == "") != (status.ClientKeyData == "") {
		return secret{}, fmt.Errorf("the exec plugin %s gives a certificate or its key, and not both", p.name)
	}
	if status.Token == "" && status.ClientKeyData == "" {
		return secret{}, fmt.Errorf("the exec plugin %s gives neither a token nor a certificate", p.name)
	}
	if status.ClientKeyData == "" {
		return c, nil
	}
	pair, err := tls.X509KeyPair([]byte(status.ClientCertificateData), []byte(status.ClientKeyData))
	if err != nil {
		return secret{}, fmt.Errorf("the exec plugin %s: reading its certificate: %w", p.name, err)
	}
	c.certificate = &pair
	if end := pair.Leaf.NotAfter; c.expires.IsZero() || end.Before(c.expires) {
		c.expires = end
	}
	return c, nil
}

// head keeps what is written, up to a limit. To write more is an error.
type head struct {
	limit int
	text  []byte
	full  bool
}

var errFull = errors.New("too much output")

// Write implements io.Writer.
func (h *head) Write(p []byte) (int, error) {
	if len(h.text)+len(p) > h.limit {
		h.full = true
		return 0, errFull
	}
	h.text = append(h.text, p...)
	return len(p), nil
}

// tail keeps the end of what is written.
type tail struct {
	text []byte
	cut  bool // the first word may be incomplete
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	const kept = 4 * quoteLimit // more than is quoted, so that secrets are recognized
	t.cut = t.cut || len(t.text)+len(p) > kept
	t.text = append(t.text, p[max(0, len(p)-kept):]...)
	t.text = t.text[max(0, len(t.text)-kept):]
	return len(p), nil
}

// String returns the end of an error that quotes what was written.
func (t *tail) String() string {
	if t.cut {
		return quoted(string(bytes.TrimLeftFunc(t.text, func(r rune) bool { return !unicode.IsSpace(r) })))
	}
	return quoted(string(t.text))
}

// quoted returns ": " and the end of a text without secrets, in one line, for the end of an error; "" for an empty text.
func quoted(s string) string {
	s = text.Redact(s)
	if s == "" {
		return ""
	}
	if len(s) > quoteLimit {
		s = "…" + strings.ToValidUTF8(s[len(s)-quoteLimit:], "")
	}
	return ": " + s
}
