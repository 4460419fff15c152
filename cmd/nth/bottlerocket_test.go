package main_test

import (
	"encoding/base64"
	"os"
	"reflect"
	"testing"

	"github.com/BurntSushi/toml"
	"sigs.k8s.io/yaml"

	"github.com/nth-project/nth/pkg/config"
)

const examples = "../../bottlerocket/"

// hostContainer is what user data says about a host container; Bottlerocket itself refuses what it does not know.
type hostContainer struct {
	Enabled      bool   `toml:"enabled"`
	Superpowered bool   `toml:"superpowered"`
	Source       string `toml:"source"`
	UserData     string `toml:"user-data"`
}

// containerIn reads the user data of a node.
func containerIn(t *testing.T, text string) hostContainer {
	t.Helper()
	var data struct {
		Settings struct {
			HostContainers map[string]hostContainer `toml:"host-containers"`
		} `toml:"settings"`
	}
	meta, err := toml.Decode(text, &data)
	if err != nil {
		t.Fatal(err)
	}
	if unknown := meta.Undecoded(); len(unknown) > 0 {
		t.Errorf("Bottlerocket knows no %v", unknown)
	}
	return data.Settings.HostContainers["nth"]
}

func shipped(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestTheUserDataForBottlerocketHasGoodSettings(t *testing.T) {
	want := config.Default()
	if err := config.Decode("nth.toml", []byte(shipped(t, examples+"nth.toml")), &want); err != nil {
		t.Fatal(err)
	}
	if reflect.DeepEqual(want, config.Default()) {
		t.Error("nth.toml sets nothing")
	}
	var class struct {
		Spec struct {
			UserData string `json:"userData"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal([]byte(shipped(t, examples+"karpenter.yaml")), &class); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"superpowered.toml": shipped(t, examples+"superpowered.toml"), "karpenter.yaml": class.Spec.UserData,
	} {
		t.Run(name, func(t *testing.T) {
			c := containerIn(t, text)
			if !c.Enabled || !c.Superpowered || c.Source == "" {
				t.Errorf("the host container is %+v", c)
			}
			decoded, err := base64.StdEncoding.DecodeString(c.UserData)
			if err != nil {
				t.Fatal(err)
			}
			got := config.Default()
			if err := config.Decode(name, decoded, &got); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("the settings are not those of nth.toml, %v:\n%s", err, decoded)
			}
		})
	}
}
