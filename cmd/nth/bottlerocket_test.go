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

func shipped(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// The examples of user data hold the settings in nth.toml. Bottlerocket itself refuses what it does not know.
func TestBottlerocket_UserDataHasGoodSettings(t *testing.T) {
	want := config.Default()
	if err := config.Decode("nth.toml", []byte(shipped(t, examples+"nth.toml")), &want); err != nil || reflect.DeepEqual(want, config.Default()) {
		t.Fatalf("nth.toml sets nothing: %v", err)
	}
	var class struct {
		Spec struct {
			UserData string `json:"userData"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal([]byte(shipped(t, examples+"karpenter.yaml")), &class); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{shipped(t, examples+"superpowered.toml"), class.Spec.UserData} {
		var data struct {
			Settings struct {
				HostContainers map[string]struct {
					Enabled, Superpowered bool
					Source                string
					UserData              string `toml:"user-data"`
				} `toml:"host-containers"`
			}
		}
		meta, err := toml.Decode(text, &data)
		c := data.Settings.HostContainers["nth"]
		if err != nil || len(meta.Undecoded()) > 0 || !c.Enabled || !c.Superpowered || c.Source == "" {
			t.Errorf("the host container is %+v, unknown %v, %v", c, meta.Undecoded(), err)
		}
		decoded, err := base64.StdEncoding.DecodeString(c.UserData)
		if err != nil {
			t.Fatal(err)
		}
		got := config.Default()
		if err := config.Decode("user data", decoded, &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("the settings are not those of nth.toml, %v:\n%s", err, decoded)
		}
	}
}
