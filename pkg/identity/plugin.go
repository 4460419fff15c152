package identity

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	v1 "k8s.io/client-go/pkg/apis/clientauthentication/v1"
	"k8s.io/client-go/pkg/apis/clientauthentication/v1beta1"
	"k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/nth-project/nth/pkg/kube"
	"github.com/nth-project/nth/pkg/text"
)

const (
	// outputLimit is the most that is read of what a plugin prints, in bytes.
	outputLimit = 1 << 20
	// quoteLimit is the most that errors quote of what a plugin prints on its standard error, or of a kubeconfig's installHint, in bytes.
	quoteLimit = 500
)

// plugin runs the exec plugin of a kubeconfig, as client-go does, but fit for a daemon. client-go waits for an exec plugin without a limit, and
// all requests wait with it. nth kills the exec plugin with its process group when it does not end in time, and can run it again.
//
// The input and the output of a plugin are Kubernetes' formats, of which v1 and v1beta1 have the same fields:
// https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins
type plugin struct {
	name string // for errors
	spec *api.ExecConfig
	env  []string
	root string // the directory that the plugin sees as "/"; "" for this process's
}

// newPlugin prepares the exec plugin of a kubeconfig, and does not run it. root is the directory that the plugin sees as "/"; ""
// means this process's root. The plugin has this process's environment; variables in the kubeconfig override it.
func newPlugin(spec *api.ExecConfig, root string) (*plugin, error) {
	p := &plugin{name: filepath.Base(spec.Command), spec: spec, root: root}
	if p.spec.InteractiveMode == api.AlwaysExecInteractiveMode {
		return nil, fmt.Errorf("the exec plugin %s wants a terminal (interactiveMode: Always), and a daemon has none", p.name)
	}
	if known := []string{v1.SchemeGroupVersion.String(), v1beta1.SchemeGroupVersion.String()}; !slices.Contains(known, p.spec.APIVersion) {
		return nil, fmt.Errorf("the exec plugin %s: its apiVersion must be one of %q", p.name, known)
	}
	var input v1.ExecCredential
	input.Kind, input.APIVersion = "ExecCredential", p.spec.APIVersion
	info, err := json.Marshal(input)
	if err != nil {
		return nil, fmt.Errorf("the exec plugin %s: %w", p.name, err)
	}
	p.env = (&exec.Cmd{}).Environ() // this process's
	if root != "" {                 // The trusted authorities in the environment are for this process's root.
		p.env = slices.DeleteFunc(p.env, func(v string) bool { return strings.HasPrefix(v, "SSL_CERT_") })
	}
	for _, variable := range p.spec.Env {
		p.env = append(p.env, variable.Name+"="+variable.Value)
	}
	p.env = append(p.env, "KUBERNETES_EXEC_INFO="+string(info)+"\n") // client-go has the line break, too.
	return p, nil
}

// create runs the plugin and returns the credential that it prints. No error quotes its standard output, which may contain a token.
func (p *plugin) create(ctx context.Context) (credential, error) {
	ctx, cancel := context.WithTimeout(ctx, kube.Plugin)
	defer cancel()
	var stdout, stderr output
	if err := p.run(ctx, &stdout, &stderr); err != nil {
		return credential{}, fmt.Errorf("the exec plugin %s %w%s", p.name, err, quoted(string(stderr.text)))
	}
	if stdout.full {
		return credential{}, fmt.Errorf("the exec plugin %s prints more than %d bytes", p.name, outputLimit)
	}
	return p.decode(stdout.text, stderr.text)
}

// decode reads the credential that the plugin has printed. It takes JSON and YAML, as client-go does. stderr is for errors.
func (p *plugin) decode(stdout, stderr []byte) (credential, error) {
	var answer v1.ExecCredential
	switch err := yaml.Unmarshal(stdout, &answer); {
	case err != nil || answer.Kind != "ExecCredential" || answer.APIVersion != p.spec.APIVersion: // The error would quote the output.
		return credential{}, fmt.Errorf("the exec plugin %s prints no ExecCredential of %s (%d bytes)%s",
			p.name, p.spec.APIVersion, len(stdout), quoted(string(stderr)))
	case answer.Status == nil || answer.Status.Token == "":
		return credential{}, fmt.Errorf("the exec plugin %s gives no token%s", p.name, quoted(string(stderr)))
	}
	c := credential{token: answer.Status.Token}
	if answer.Status.ExpirationTimestamp != nil {
		c.expires = answer.Status.ExpirationTimestamp.Time
	}
	return c, nil
}

// run runs the plugin and collects its output. When ctx ends, the plugin is killed with its process group.
func (p *plugin) run(ctx context.Context, stdout, stderr *output) error {
	cmd := exec.CommandContext(ctx, p.spec.Command, p.spec.Args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = p.env, stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Chroot: p.root}
	if p.root != "" {
		cmd.Dir = "/"
	}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = kube.PluginChild // how long a child may keep the output open after the plugin has ended
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) { // The plugin has ended, but not its child.
		_ = cmd.Cancel() // It fails if the child has ended meanwhile.
		err = nil
	}
	exit, exited := errors.AsType[*exec.ExitError](err)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("has not ended within %s and was killed: %w", kube.Plugin, ctx.Err())
	case errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("not found%s", quoted(p.spec.InstallHint))
	case exited && exit.ExitCode() >= 0:
		return fmt.Errorf("failed with exit code %d", exit.ExitCode())
	case err != nil:
		return fmt.Errorf("failed: %w", err)
	}
	return nil
}

// output keeps the beginning of what is written.
type output struct {
	text []byte
	full bool // what followed was dropped
}

// Write implements io.Writer. What exceeds outputLimit is dropped without an error, so that the plugin does not fail.
func (o *output) Write(p []byte) (int, error) {
	kept := p[:min(len(p), outputLimit-len(o.text))]
	o.text = append(o.text, kept...)
	o.full = o.full || len(kept) < len(p)
	return len(p), nil
}

// quoted returns ": " and the last quoteLimit bytes of a text, in one line and without secrets, for the end of an error; "" for an empty text.
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
