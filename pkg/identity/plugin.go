package identity

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	v1 "k8s.io/client-go/pkg/apis/clientauthentication/v1"
	"k8s.io/client-go/pkg/apis/clientauthentication/v1beta1"
	"k8s.io/client-go/rest"
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
	// config is that of the client, for a transport with a certificate.
	config *rest.Config
}

// newPlugin prepares the exec plugin of a client's configuration, and does not run it. root is the directory that the plugin sees as "/"; ""
// means this process's root. env is added to this process's environment, as "NAME=value"; variables in the kubeconfig override both.
func newPlugin(config *rest.Config, root string, env []string) (*plugin, error) {
	p := &plugin{name: filepath.Base(config.ExecProvider.Command), spec: config.ExecProvider, root: root, config: config}
	if p.spec.InteractiveMode == api.AlwaysExecInteractiveMode {
		return nil, fmt.Errorf("the exec plugin %s wants a terminal (interactiveMode: Always), and a daemon has none", p.name)
	}
	if known := []string{v1.SchemeGroupVersion.String(), v1beta1.SchemeGroupVersion.String()}; !slices.Contains(known, p.spec.APIVersion) {
		return nil, fmt.Errorf("the exec plugin %s: its apiVersion must be one of %q", p.name, known)
	}
	var input v1.ExecCredential
	input.Kind, input.APIVersion = "ExecCredential", p.spec.APIVersion
	if p.spec.ProvideClusterInfo {
		cluster, err := rest.ConfigToExecCluster(config)
		if err == nil {
			input.Spec.Cluster = &v1.Cluster{}
			err = v1.Convert_clientauthentication_Cluster_To_v1_Cluster(cluster, input.Spec.Cluster, nil)
		}
		if err != nil {
			return nil, fmt.Errorf("the exec plugin %s: %w", p.name, err)
		}
	}
	info, err := json.Marshal(input)
	if err != nil {
		return nil, fmt.Errorf("the exec plugin %s: %w", p.name, err)
	}
	p.env = (&exec.Cmd{}).Environ() // this process's
	if root != "" {                 // The trusted authorities in the environment are for this process's root.
		p.env = slices.DeleteFunc(p.env, func(v string) bool { return strings.HasPrefix(v, "SSL_CERT_") })
	}
	p.env = append(p.env, env...)
	for _, variable := range p.spec.Env {
		p.env = append(p.env, variable.Name+"="+variable.Value)
	}
	p.env = append(p.env, "KUBERNETES_EXEC_INFO="+string(info)+"\n") // client-go has the line break, too.
	return p, nil
}

// create runs the plugin and returns the credential that it prints. No error quotes its standard output, which may contain a token.
func (p *plugin) create(ctx context.Context) (credential, error) {
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
	document, err := yaml.YAMLToJSON(stdout)
	if err == nil {
		err = json.Unmarshal(document, &answer)
	}
	switch {
	case err != nil || answer.Kind != "ExecCredential" || answer.APIVersion != p.spec.APIVersion: // The error would quote the output.
		return credential{}, fmt.Errorf("the exec plugin %s prints no ExecCredential of %s (%d bytes)%s",
			p.name, p.spec.APIVersion, len(stdout), quoted(string(stderr)))
	case answer.Status == nil || answer.Status.Token == "" && answer.Status.ClientCertificateData == "":
		return credential{}, fmt.Errorf("the exec plugin %s gives neither a token nor a client certificate%s", p.name, quoted(string(stderr)))
	}
	c := credential{token: answer.Status.Token, source: "the exec plugin " + p.name}
	if answer.Status.ExpirationTimestamp != nil {
		c.expires = answer.Status.ExpirationTimestamp.Time
	}
	if answer.Status.ClientCertificateData != "" || answer.Status.ClientKeyData != "" {
		c.through, err = p.transport([]byte(answer.Status.ClientCertificateData), []byte(answer.Status.ClientKeyData))
	}
	return c, err
}

// transport returns a transport that presents a client certificate. Each transport has its own connections: the API server identifies a client
// by the certificate with which the connection began.
func (p *plugin) transport(certificate, key []byte) (http.RoundTripper, error) {
	if _, err := tls.X509KeyPair(certificate, key); err != nil { // The error could quote them.
		return nil, fmt.Errorf("the exec plugin %s gives a client certificate and key that are no pair in PEM", p.name)
	}
	presents := rest.CopyConfig(p.config)
	presents.CertData, presents.KeyData, presents.ExecProvider = certificate, key, nil
	return kube.NewTransport(presents)
}

// run runs the plugin and collects its output. When ctx ends, the plugin is killed with its process group.
func (p *plugin) run(ctx context.Context, stdout, stderr *output) error {
	path, err := p.path()
	if err != nil {
		return fmt.Errorf("not found%s", quoted(p.spec.InstallHint))
	}
	cmd := exec.CommandContext(ctx, path, p.spec.Args...)
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
	cmd.Cancel, cmd.WaitDelay = kill, kube.PluginChild // how long a child may keep the output open after the plugin has ended
	began := time.Now()
	err = cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) { // The plugin has ended, but not its child.
		_ = kill() // which fails if the child has ended meanwhile
		err = nil
	}
	exit, exited := errors.AsType[*exec.ExitError](err)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("has not ended within %s and was killed: %w", time.Since(began).Round(time.Second/10), ctx.Err())
	case exited && exit.ExitCode() >= 0:
		return fmt.Errorf("failed with exit code %d", exit.ExitCode())
	case err != nil:
		return fmt.Errorf("failed: %w", err)
	}
	return nil
}

// path returns the path of the plugin's program, as seen from p.root. A name without a slash is looked for in PATH.
func (p *plugin) path() (string, error) {
	if p.root == "" {
		return exec.LookPath(p.spec.Command)
	}
	places := []string{p.spec.Command}
	if !strings.Contains(p.spec.Command, "/") {
		places = nil
		for _, variable := range (&exec.Cmd{}).Environ() {
			if path, found := strings.CutPrefix(variable, "PATH="); found {
				for _, dir := range filepath.SplitList(path) {
					places = append(places, filepath.Join("/", dir, p.spec.Command))
				}
			}
		}
	}
	for _, place := range places {
		if _, err := os.Lstat(filepath.Join(p.root, place)); err == nil { // A link may lead to somewhere else as seen from here.
			return place, nil
		}
	}
	return "", exec.ErrNotFound
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

// newKeeper returns a keeper of the credential that the kubeconfig's exec plugin or opts.Token makes. configured describes that credential
// until one is made. newKeeper prefers opts.Token if that can replace the plugin (see eksCluster). opts.Fallback says when the plugin runs in
// spite of that.
func newKeeper(config *rest.Config, opts ClientOptions) (k *keeper, configured string, err error) {
	run, err := newPlugin(config, opts.root, opts.environment)
	if err != nil {
		return nil, "", err
	}
	byPlugin := func(ctx context.Context, _ bool) (credential, error) {
		ctx, cancel := context.WithTimeout(ctx, kube.Plugin)
		defer cancel()
		return run.create(ctx)
	}
	var cluster, region string
	if opts.Token != nil {
		cluster, region, err = eksCluster(config.ExecProvider)
	}
	if opts.Token == nil || err != nil && opts.Fallback { // Only the plugin can make the credential.
		return &keeper{create: byPlugin}, "the exec plugin " + run.name, nil
	}
	if err != nil {
		return nil, "", err
	}
	configured = fmt.Sprintf("a token for the EKS cluster %s, of %s,", cluster, cmp.Or(opts.Role, "the instance's role"))
	refusals := 0 // how many of the credentials made here the API server has refused
	return &keeper{create: func(ctx context.Context, refused bool) (credential, error) {
		if refused {
			refusals++
		}
		if opts.Fallback && refusals%2 == 1 { // Token and the plugin take turns after refusals, and the API server refused Token's last.
			return byPlugin(ctx, refused)
		}
		limited, cancel := context.WithTimeout(ctx, kube.Token)
		defer cancel()
		token, expires, err := opts.Token(limited, cluster, region)
		if err == nil || !opts.Fallback {
			return credential{token: token, expires: expires, source: configured}, err
		}
		c, pluginErr := byPlugin(ctx, refused)
		if pluginErr != nil {
			return c, fmt.Errorf("%w; %w", err, pluginErr)
		}
		c.source += fmt.Sprintf(" (%s)", err) // Operators see why Token did not make the credential.
		return c, nil
	}}, configured, nil
}

// errNeedsPlugin is the end of an error that says why ClientOptions.Token cannot replace a plugin.
var errNeedsPlugin = errors.New("and has to be run")

// eksCluster reads from a plugin's command line for which EKS cluster it makes tokens; an empty region means the instance's own. The error says
// why ClientOptions.Token cannot replace this plugin. It must be "aws eks get-token" or "aws-iam-authenticator token", with no arguments that
// change the token, such as the name of another role.
func eksCluster(exec *api.ExecConfig) (cluster, region string, err error) {
	name := filepath.Base(exec.Command)
	variables := map[string]string{}
	for _, variable := range exec.Env {
		switch variable.Name {
		case "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_STS_REGIONAL_ENDPOINTS": // Tokens name regional endpoints in any case.
			variables[variable.Name] = variable.Value
		default:
			return "", "", fmt.Errorf("the exec plugin %s is given the variable %s, %w", name, variable.Name, errNeedsPlugin)
		}
	}
	region = cmp.Or(variables["AWS_REGION"], variables["AWS_DEFAULT_REGION"])
	var words []string // the arguments that are neither flags nor their values: the subcommand
	for i := 0; i < len(exec.Args); i++ {
		flag, value, hasValue := strings.Cut(exec.Args[i], "=")
		if !strings.HasPrefix(flag, "-") {
			words = append(words, exec.Args[i])
			continue
		}
		if !hasValue && i+1 < len(exec.Args) {
			i++ // The flag's value is the next argument.
			value = exec.Args[i]
		}
		switch flag {
		case "-i", "--cluster-id", "--cluster-name":
			cluster = value
		case "--region":
			region = value
		case "--output": // JSON, as no kubelet understands anything else
		default:
			return "", "", fmt.Errorf("the exec plugin %s is called with %s, %w", name, flag, errNeedsPlugin)
		}
	}
	subcommand := map[string]string{"aws": "eks get-token", "aws-iam-authenticator": "token"}[name]
	if subcommand == "" || strings.Join(words, " ") != subcommand {
		return "", "", fmt.Errorf("the exec plugin %s is none of those that make tokens for EKS, %w", name, errNeedsPlugin)
	}
	if cluster == "" {
		return "", "", fmt.Errorf("the exec plugin %s is called for no cluster", name)
	}
	return cluster, region, nil
}
