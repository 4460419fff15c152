package images_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/nth-project/nth/test/tools"
)

// packer is Packer with its plugin for EC2, both without a network: what it needs to know about a template is in them.
type packer struct {
	program string
	home    string
}

// newPacker puts the plugin where Packer looks for it, under the name that it looks for, with its checksum beside it.
func newPacker(t *testing.T) packer {
	t.Helper()
	const name = "packer-plugin-amazon"
	program, err := tools.Path("packer")
	if err != nil {
		t.Fatal(err)
	}
	p := packer{program: program, home: t.TempDir()}
	plugin, err := tools.Path(name)
	if err != nil {
		t.Fatal(err)
	}
	said, err := exec.CommandContext(t.Context(), plugin, "describe").Output()
	if err != nil {
		t.Fatal(err)
	}
	var description struct {
		Version string `json:"version"`
		API     string `json:"api_version"`
	}
	if err := json.Unmarshal(said, &description); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(plugin)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(p.home, "github.com", "hashicorp", "amazon")
	path := filepath.Join(dir, fmt.Sprintf("%s_v%s_%s_%s_%s", name, description.Version, description.API, runtime.GOOS, runtime.GOARCH))
	sum := sha256.Sum256(content)
	for _, err := range []error{
		os.MkdirAll(dir, 0o700),
		os.WriteFile(path, content, 0o700), // it is a program
		os.WriteFile(path+"_SHA256SUM", []byte(hex.EncodeToString(sum[:])+"\n"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// run runs Packer and returns what it says.
func (p packer) run(t *testing.T, args ...string) (string, error) {
	cmd := exec.CommandContext(t.Context(), p.program, args...)
	cmd.Env = append(os.Environ(), "PACKER_PLUGIN_PATH="+p.home, "PACKER_CONFIG_DIR="+p.home, "CHECKPOINT_DISABLE=1", "AWS_EC2_METADATA_DISABLED=true")
	said, err := cmd.CombinedOutput()
	return string(said), err
}

// templates copies the templates, so that a test can change them, with packages that are none.
func templates(t *testing.T) (dir string, variables []string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(filepath.Join(packaging, "packer"))); err != nil {
		t.Fatal(err)
	}
	for _, family := range []string{"rpm", "deb"} {
		path := filepath.Join(dir, "nth."+family)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		variables = append(variables, "-var", family+"="+path)
	}
	return dir, append(variables, "-var", "settings="+filepath.Join(dir, "settings.toml"))
}

func TestTemplates_AreValidAndFormatted(t *testing.T) {
	t.Parallel()
	p := newPacker(t)
	dir, variables := templates(t)
	for _, architecture := range []string{"amd64", "arm64"} {
		args := append([]string{"validate", "-var", "architecture=" + architecture}, variables...)
		if said, err := p.run(t, append(args, dir)...); err != nil {
			t.Errorf("for %s: %v\n%s", architecture, err, said)
		}
	}
	if said, err := p.run(t, "fmt", "-check", "-diff", filepath.Join(packaging, "packer")); err != nil {
		t.Errorf("%v\n%s", err, said)
	}
}

func TestTemplates_BakeEveryImageAlike(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"al2023.pkr.hcl", "ubuntu.pkr.hcl"} {
		content := string(read(t, "packer/"+file))
		for _, want := range []string{
			`http_tokens                 = "required"`, `imds_support = "v2.0"`, `"sudo systemctl enable nth.service"`,
			// The last words of the last provisioner: a build fails where nth runs on the machine that the image is made of.
			"if systemctl is-active --quiet nth.service; then echo 'nth runs on the machine that the image is made of' >&2; exit 1; fi\",\n" +
				"      \"sudo nth check --offline\",\n    ]",
		} {
			if !strings.Contains(content, want) {
				t.Errorf("%s lacks %s", file, want)
			}
		}
		if strings.Contains(content, "systemctl start") || strings.Contains(content, "enable --now") {
			t.Errorf("%s starts nth in an image that has no cluster", file)
		}
	}
}
