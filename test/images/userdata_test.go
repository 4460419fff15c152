package images_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/mail"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/nth-project/nth/pkg/config"
)

// A document is YAML, of which a test reads the texts at paths such as "spec.amiFamily".
type document map[string]any

func decode(t *testing.T, content []byte) (d document) {
	t.Helper()
	if err := yaml.Unmarshal(content, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// at is the text at a path; "" if there is none.
func (d document) at(path string) string {
	var value any = map[string]any(d)
	for key := range strings.SplitSeq(path, ".") {
		object, _ := value.(map[string]any)
		value = object[key]
	}
	text, _ := value.(string)
	return text
}

func TestUserData_OfEachKindIsWhatItsReaderTakes(t *testing.T) {
	t.Parallel()
	t.Run("cloud-init", func(t *testing.T) { judgeCloudConfig(t, read(t, "user-data/cloud-init.yaml")) })
	t.Run("nodeadm", func(t *testing.T) {
		judgeParts(t, read(t, "user-data/nodeadm.mime"), "application/node.eks.aws", "text/cloud-config")
	})
	t.Run("Karpenter", func(t *testing.T) {
		class := decode(t, read(t, "user-data/karpenter.yaml"))
		if class.at("apiVersion") != "karpenter.k8s.aws/v1" || class.at("kind") != "EC2NodeClass" || class.at("spec.amiFamily") != "AL2023" {
			t.Errorf("this is a %s %s for %s", class.at("apiVersion"), class.at("kind"), class.at("spec.amiFamily"))
		}
		if class.at("spec.metadataOptions.httpTokens") != "required" {
			t.Error("the metadata service would answer without a token")
		}
		judgeParts(t, []byte(class.at("spec.userData")), "text/cloud-config")
	})
	t.Run("a managed node group", func(t *testing.T) {
		const template = "Resources.LaunchTemplate.Properties.LaunchTemplateData."
		stack := decode(t, read(t, "user-data/node-group.yaml"))
		if stack.at(template+"MetadataOptions.HttpTokens") != "required" {
			t.Error("the metadata service would answer without a token")
		}
		judgeParts(t, []byte(stack.at(template+"UserData.Fn::Base64")), "application/node.eks.aws", "text/cloud-config")
	})
	t.Run("Packer", func(t *testing.T) { judgeSettings(t, string(read(t, "packer/settings.toml"))) })
}

// What the image does by itself from one version of Kubernetes on is what our user data asks for before that, and what the pages
// that explain it say.
func TestUserData_HasTheImagesGracefulShutdown(t *testing.T) {
	t.Parallel()
	sources, err := os.ReadFile("../../docs/sources.md")
	if err != nil {
		t.Fatal(err)
	}
	said := regexp.MustCompile("(?m)^\\| E5 \\| .*`shutdownGracePeriod: (\\d+)s` and `shutdownGracePeriodCriticalPods: (\\d+)s`").FindSubmatch(sources)
	if said == nil {
		t.Fatal("docs/sources.md does not say what the image sets")
	}
	page, err := os.ReadFile("../../docs/shutdown.md")
	if err != nil {
		t.Fatal(err)
	}
	if row := fmt.Sprintf("%s s, %s s of them for critical pods [[E5](sources.md)]", said[1], said[2]); !strings.Contains(string(page), row) {
		t.Errorf("docs/shutdown.md does not say %q", row)
	}
	settings := string(read(t, "user-data/nodeadm.mime"))
	for name, seconds := range map[string][]byte{"shutdownGracePeriod": said[1], "shutdownGracePeriodCriticalPods": said[2]} {
		if line := fmt.Sprintf("\n      %s: %ss\n", name, seconds); !strings.Contains(settings, line) {
			t.Errorf("nodeadm.mime does not have %q", line)
		}
	}
}

// judgeParts reads user data of several parts, and expects these types of them.
func judgeParts(t *testing.T, content []byte, want ...string) {
	t.Helper()
	message, err := mail.ReadMessage(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	_, parameters, err := mime.ParseMediaType(message.Header.Get("Content-Type"))
	if err != nil {
		t.Fatal(err)
	}
	var types []string
	for parts := multipart.NewReader(message.Body, parameters["boundary"]); ; {
		part, err := parts.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		kind, _, err := mime.ParseMediaType(part.Header.Get("Content-Type"))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(part)
		if err != nil {
			t.Fatal(err)
		}
		types = append(types, kind)
		judgePart(t, kind, body)
	}
	if !slices.Equal(types, want) {
		t.Errorf("the parts are %v, want %v", types, want)
	}
}

func judgePart(t *testing.T, kind string, body []byte) {
	t.Helper()
	if kind == "text/cloud-config" {
		judgeCloudConfig(t, body)
		return
	}
	node := decode(t, body)
	if node.at("apiVersion") != "node.eks.aws/v1alpha1" || node.at("kind") != "NodeConfig" {
		t.Errorf("this is a %s %s", node.at("apiVersion"), node.at("kind"))
	}
	for _, needed := range []string{"name", "apiServerEndpoint", "certificateAuthority", "cidr"} {
		if node.at("spec.cluster."+needed) == "" {
			t.Errorf("nodeadm needs the cluster's %s", needed)
		}
	}
}

func judgeCloudConfig(t *testing.T, content []byte) {
	t.Helper()
	if !bytes.HasPrefix(content, []byte("#cloud-config\n")) {
		t.Error("without #cloud-config in its first line, cloud-init does not take it for one")
	}
	files, _ := decode(t, content)["write_files"].([]any)
	if len(files) != 1 {
		t.Fatalf("it writes %d files, want 1", len(files))
	}
	file := document(files[0].(map[string]any))
	if path := file.at("path"); filepath.Dir(path) != "/etc/nth/nth.toml.d" || !strings.HasSuffix(path, ".toml") || file.at("permissions") != "0644" {
		t.Errorf("%s, with mode %s, is no drop-in of nth's", path, file.at("permissions"))
	}
	judgeSettings(t, file.at("content"))
}

func judgeSettings(t *testing.T, settings string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nth.toml")
	if err := os.WriteFile(path, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := config.Load(path, true, config.Default()); err != nil {
		t.Errorf("nth does not take these settings: %v", err)
	}
}
