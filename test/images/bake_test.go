package images_test

import (
	"os/exec"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// EC2 Image Builder itself is not here: what it runs is judged by the shell that would run it.
func TestImageBuilder_RunsWhatAShellCanRead(t *testing.T) {
	t.Parallel()
	var component struct {
		Name, Description string
		SchemaVersion     float64
		Parameters        []map[string]map[string]string
		Phases            []struct {
			Name  string
			Steps []struct {
				Name, Action string
				Inputs       any
			}
		}
	}
	if err := yaml.UnmarshalStrict(read(t, "image-builder/nth.yaml"), &component); err != nil {
		t.Fatal(err)
	}
	scripts := 0
	for _, phase := range component.Phases {
		for _, step := range phase.Steps {
			if step.Action != "ExecuteBash" {
				continue
			}
			scripts++
			inputs, _ := step.Inputs.(map[string]any)
			for _, script := range inputs["commands"].([]any) {
				command := exec.CommandContext(t.Context(), "bash", "-n")
				command.Stdin = strings.NewReader(script.(string))
				if said, err := command.CombinedOutput(); err != nil {
					t.Errorf("%s, %s: %v: %s", phase.Name, step.Name, err, said)
				}
			}
		}
	}
	if scripts != 2 {
		t.Errorf("it has %d scripts, want one that installs and one that judges", scripts)
	}
}

// Flatcar gets the units of the packages, and settings that nth takes.
func TestFlatcar_NamesOurUnitsAndSettings(t *testing.T) {
	t.Parallel()
	var config struct {
		Storage struct {
			Files []struct {
				Path     string
				Contents struct{ Inline, Local string }
			}
		}
		Systemd struct {
			Units []struct {
				Name, Contents string
				Local          string `json:"contents_local"`
			}
		}
	}
	if err := yaml.Unmarshal(read(t, "flatcar/nth.bu"), &config); err != nil {
		t.Fatal(err)
	}
	settings := 0
	for _, file := range config.Storage.Files {
		if file.Path == "/etc/nth/nth.toml" {
			judgeSettings(t, file.Contents.Inline)
			settings++
		}
		if file.Contents.Local != "" {
			read(t, "../systemd/"+file.Contents.Local)
		}
	}
	for _, unit := range config.Systemd.Units {
		if unit.Contents == "" {
			read(t, "../systemd/"+unit.Local)
		}
	}
	if settings != 1 || len(config.Systemd.Units) != 3 {
		t.Errorf("there are %d files of settings and %d units, want 1 and 3", settings, len(config.Systemd.Units))
	}
}
