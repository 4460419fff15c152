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

// nodeConfig is as much of nodeadm's NodeConfig as every node needs.
type nodeConfig struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Spec       struct {
		Cluster struct {
			Name                 string `json:"name"`
			APIServerEndpoint    string `json:"apiServerEndpoint"`
			CertificateAuthority string `json:"certificateAuthority"`
			CIDR                 string `json:"cidr"`
		} `json:"cluster"`
	} `json:"spec"`
}

type cloudConfig struct {
	WriteFiles []struct {
		Path        string `json:"path"`
		Permissions string `json:"permissions"`
		Content     string `json:"content"`
	} `json:"write_files"`
}

type nodeClass struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Spec       struct {
		AMIFamily       string `json:"amiFamily"`
		UserData        string `json:"userData"`
		MetadataOptions struct {
			HTTPTokens string `json:"httpTokens"`
		} `json:"metadataOptions"`
	} `json:"spec"`
}

type stack struct {
	Resources struct {
		LaunchTemplate struct {
			Properties struct {
				LaunchTemplateData struct {
					UserData struct {
						Base64 string `json:"Fn::Base64"`
					} `json:"UserData"`
					MetadataOptions struct {
						HTTPTokens string `json:"HttpTokens"`
					} `json:"MetadataOptions"`
				} `json:"LaunchTemplateData"`
			} `json:"Properties"`
		} `json:"LaunchTemplate"`
	} `json:"Resources"`
}

func TestCloudInitWritesSettingsThatNthTakes(t *testing.T) {
	t.Parallel()
	judgeCloudConfig(t, read(t, "user-data/cloud-init.yaml"))
}

func TestNodeadmGetsANodeConfigAndNthItsSettings(t *testing.T) {
	t.Parallel()
	judgeParts(t, read(t, "user-data/nodeadm.mime"), "application/node.eks.aws", "text/cloud-config")
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

func TestKarpenterGivesItsNodesSettings(t *testing.T) {
	t.Parallel()
	var class nodeClass
	decode(t, read(t, "user-data/karpenter.yaml"), &class)
	if class.APIVersion != "karpenter.k8s.aws/v1" || class.Kind != "EC2NodeClass" || class.Spec.AMIFamily != "AL2023" {
		t.Errorf("this is a %s %s for %s", class.APIVersion, class.Kind, class.Spec.AMIFamily)
	}
	if class.Spec.MetadataOptions.HTTPTokens != "required" {
		t.Error("the metadata service would answer without a token")
	}
	judgeParts(t, []byte(class.Spec.UserData), "text/cloud-config")
}

func TestAManagedNodeGroupGivesItsNodesSettings(t *testing.T) {
	t.Parallel()
	var s stack
	decode(t, read(t, "user-data/node-group.yaml"), &s)
	template := s.Resources.LaunchTemplate.Properties.LaunchTemplateData
	if template.MetadataOptions.HTTPTokens != "required" {
		t.Error("the metadata service would answer without a token")
	}
	judgeParts(t, []byte(template.UserData.Base64), "application/node.eks.aws", "text/cloud-config")
}

func TestTheSettingsOfThePackerTemplatesAreTaken(t *testing.T) {
	t.Parallel()
	judgeSettings(t, string(read(t, "packer/settings.toml")))
}

func decode(t *testing.T, content []byte, into any) {
	t.Helper()
	if err := yaml.Unmarshal(content, into); err != nil {
		t.Fatal(err)
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
	var node nodeConfig
	decode(t, body, &node)
	cluster := node.Spec.Cluster
	if node.APIVersion != "node.eks.aws/v1alpha1" || node.Kind != "NodeConfig" {
		t.Errorf("this is a %s %s", node.APIVersion, node.Kind)
	}
	if cluster.Name == "" || cluster.APIServerEndpoint == "" || cluster.CertificateAuthority == "" || cluster.CIDR == "" {
		t.Errorf("nodeadm needs all four of %+v", cluster)
	}
}

func judgeCloudConfig(t *testing.T, content []byte) {
	t.Helper()
	if !bytes.HasPrefix(content, []byte("#cloud-config\n")) {
		t.Error("without #cloud-config in its first line, cloud-init does not take it for one")
	}
	var cloud cloudConfig
	decode(t, content, &cloud)
	if len(cloud.WriteFiles) != 1 {
		t.Fatalf("it writes %d files, want 1", len(cloud.WriteFiles))
	}
	file := cloud.WriteFiles[0]
	if filepath.Dir(file.Path) != "/etc/nth/nth.toml.d" || !strings.HasSuffix(file.Path, ".toml") || file.Permissions != "0644" {
		t.Errorf("%s, with mode %s, is no drop-in of nth's", file.Path, file.Permissions)
	}
	judgeSettings(t, file.Content)
}

func judgeSettings(t *testing.T, settings string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nth.toml")
	if err := os.WriteFile(path, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := config.Usual().Load(path); err != nil {
		t.Errorf("nth does not take these settings: %v", err)
	}
}
