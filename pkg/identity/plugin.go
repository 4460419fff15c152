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

// plugin runs the exec plugin of a kubeconfig. client-go can do that, too, but waits for an exec plugin without a limit, and all requests wait with
// it. nth kills an exec plugin that does not end in time, with the plugin's process group, and can run the plugin again.
//
// The input and the output of an exec plugin are Kubernetes' formats, of which v1 and v1beta1 have the same fields:
// https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins
type plugin struct {
	name string // for errors
	spec *api.ExecConfig
	env  []string // what is added to this process's environment
	root string   // the directory that the exec plugin sees as "/"; "" means the root of this process
}

// newPlugin prepares to run the exec plugin that a kubeconfig specifies, and does not run it. root is the directory that the exec plugin sees as "/";
// "" means the root of this process. The exec plugin gets this process's environment; variables in the kubeconfig override those.
func newPlugin(spec *api.ExecConfig, root string) (*plugin, error) {
	p := &plugin{name: filepath.Base(spec.Command), spec: spec, root: root}
	if p.spec.InteractiveMode == api.AlwaysExecInteractiveMode {
		return nil, fmt.Errorf("the exec plugin %s requires a terminal (interactiveMode: Always), which a daemon does not have", p.name)
	}
	known := []string{v1.SchemeGroupVersion.String(), v1beta1.SchemeGroupVersion.String()}
	if !slices.Contains(known, p.spec.APIVersion) {
		return nil, fmt.Errorf("the exec plugin %s has an unsupported apiVersion; it must be %s", p.name, strings.Join(known, " or "))
	}
	var input v1.ExecCredential
	input.Kind, input.APIVersion = "ExecCredential", p.spec.APIVersion
	info, err := json.Marshal(input)
	if err != nil {
		return nil, fmt.Errorf("encoding the input of the exec plugin %s: %w", p.name, err)
	}
	for _, variable := range p.spec.Env {
		p.env = append(p.env, variable.Name+"="+variable.Value)
	}
	p.env = append(p.env, "KUBERNETES_EXEC_INFO="+string(info)+"\n") // with a line break, as client-go passes it
	return p, nil
}

// create runs the exec plugin, and returns the credential that the exec plugin prints. No error quotes the standard output, which may contain a
// token. Errors quote the end of the standard error, redacted.
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

// decode reads the credential that the exec plugin has printed to stdout. It accepts JSON and YAML, as client-go does. stderr is what the exec plugin
// has printed for operators: errors quote it.
func (p *plugin) decode(stdout, stderr []byte) (credential, error) {
	var answer v1.ExecCredential
	switch err := yaml.Unmarshal(stdout, &answer); {
	case err != nil || answer.Kind != "ExecCredential" || answer.APIVersion != p.spec.APIVersion: // err would quote the output.
		return credential{}, fmt.Errorf("the exec plugin %s printed no valid ExecCredential of apiVersion %s (output: %s)%s",
			p.name, p.spec.APIVersion, text.Count(len(stdout), "byte"), quoted(string(stderr)))
	case answer.Status == nil || answer.Status.Token == "":
		return credential{}, fmt.Errorf("the exec plugin %s printed an ExecCredential without a token%s", p.name, quoted(string(stderr)))
	}
	c := credential{token: answer.Status.Token}
	if answer.Status.ExpirationTimestamp != nil {
		c.expires = answer.Status.ExpirationTimestamp.Time
	}
	return c, nil
}

// run runs the exec plugin and collects its output. When ctx ends, run kills the exec plugin and its process group. The error is the end of a
// sentence, such as "failed with exit code 1".
func (p *plugin) run(ctx context.Context, stdout, stderr *output) error {
	cmd := exec.CommandContext(ctx, p.spec.Command, p.spec.Args...)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Chroot: p.root}
	inherited := cmd.Environ()
	if p.root != "" { // This process's directory, and the paths in SSL_CERT_FILE and SSL_CERT_DIR, may not exist below root.
		cmd.Dir = "/"
		inherited = slices.DeleteFunc(inherited, func(v string) bool { return strings.HasPrefix(v, "SSL_CERT_") })
	}
	cmd.Env = append(inherited, p.env...)
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = kube.PluginChild // how long a child of the exec plugin may keep the output open after the exec plugin has ended
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) { // The exec plugin has succeeded, and its child has not ended: only the child is killed.
		_ = cmd.Cancel()
		err = nil
	}
	exit, exited := errors.AsType[*exec.ExitError](err)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("exceeded its time limit of %s and was killed", kube.Plugin)
	case errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("was not found%s", quoted(p.spec.InstallHint))
	case exited && exit.ExitCode() >= 0: // -1: a signal has ended it, which err says.
		return fmt.Errorf("failed with exit code %d", exit.ExitCode())
	case err != nil:
		return fmt.Errorf("failed: %w", err)
	}
	return nil
}

// output keeps the first outputLimit bytes of what an exec plugin prints.
type output struct {
	text []byte
	full bool // more was printed, and dropped
}

// Write implements io.Writer. It drops what exceeds outputLimit, without an error: the exec plugin must not fail because of that.
func (o *output) Write(p []byte) (int, error) {
	kept := p[:min(len(p), outputLimit-len(o.text))]
	o.text = append(o.text, kept...)
	o.full = o.full || len(kept) < len(p)
	return len(p), nil
}

// quoted returns the end of an error message: ": " and the last quoteLimit bytes of a text, in one line and without secrets. For an empty text it
// returns "".
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
