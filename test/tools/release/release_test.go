package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
)

const commit = "c0ffeec0ffeec0ffeec0ffeec0ffeec0ffeec0ff"

// made is what a command writes.
func made(t *testing.T, args ...string) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := run(args, &out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// self is this test's program, under a name that does not change.
func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "nth")
	if err := os.Symlink(path, name); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestSBOM_NamesTheProgramEveryModuleAndGo(t *testing.T) {
	path := self(t)
	text := made(t, "sbom", "--version", "1.2.3", "--date", "1700000000", path)
	doc, err := spdxjson.Read(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if doc.SPDXVersion != "SPDX-2.3" || doc.CreationInfo.Created != "2023-11-14T22:13:20Z" || doc.DocumentName != "nth-1.2.3" {
		t.Errorf("it is %s of %s, %s", doc.SPDXVersion, doc.DocumentName, doc.CreationInfo.Created)
	}
	versions := map[string]string{}
	for _, p := range doc.Packages {
		versions[p.PackageName] = p.PackageVersion
	}
	linked, err := exec.CommandContext(t.Context(), "go", "version", "-m", path).Output()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"nth": "1.2.3"}
	for line := range strings.Lines(string(linked)) {
		switch field := strings.Fields(line); {
		case len(field) > 2 && field[0] == "dep":
			want[field[1]] = field[2]
		case strings.Contains(line, ": go"):
			_, want["stdlib"], _ = strings.Cut(strings.TrimSpace(line), ": go")
		}
	}
	if len(want) < 4 {
		t.Errorf("go says that this test is linked with %v: what is compared?", want)
	}
	for name, version := range want {
		if versions[name] != version {
			t.Errorf("%s is %q, want %q", name, versions[name], version)
		}
	}
	if len(doc.Packages) != len(want) || len(doc.Relationships) != len(want) {
		t.Errorf("it has %d packages and %d relationships, want %d", len(doc.Packages), len(doc.Relationships), len(want))
	}
	if how := doc.Relationships[0]; how.Relationship != spdx.RelationshipDescribes {
		t.Errorf("it begins with %s", how.Relationship)
	}
}

func TestProvenance_NamesFilesCommitAndRelease(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"a.deb": "a", "b.rpm": "b"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{"provenance", "--version", "1.2.3", "--commit", commit, "--date", "1700000000", "--source", "https://git.example/nth", dir}
	text := made(t, args...)
	var statement struct {
		Type          string `json:"_type"`
		PredicateType string `json:"predicateType"`
		Subject       []struct {
			Name   string            `json:"name"`
			Digest map[string]string `json:"digest"`
		} `json:"subject"`
		Predicate struct {
			BuildDefinition struct {
				ExternalParameters   map[string]string `json:"externalParameters"`
				ResolvedDependencies []struct {
					URI    string            `json:"uri"`
					Digest map[string]string `json:"digest"`
				} `json:"resolvedDependencies"`
			} `json:"buildDefinition"`
		} `json:"predicate"`
	}
	if err := json.Unmarshal(text, &statement); err != nil {
		t.Fatal(err)
	}
	if statement.Type != "https://in-toto.io/Statement/v1" || statement.PredicateType != "https://slsa.dev/provenance/v1" {
		t.Errorf("it is a %s of %s", statement.Type, statement.PredicateType)
	}
	const sumOfA = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"
	if s := statement.Subject; len(s) != 2 || s[0].Name != "a.deb" || s[0].Digest["sha256"] != sumOfA || s[1].Name != "b.rpm" {
		t.Errorf("it is of %v", s)
	}
	build := statement.Predicate.BuildDefinition
	if build.ExternalParameters["version"] != "1.2.3" {
		t.Errorf("it was made with %v", build.ExternalParameters)
	}
	if d := build.ResolvedDependencies; len(d) != 2 || d[0].Digest["gitCommit"] != commit || !strings.HasPrefix(d[1].URI, "pkg:golang/toolchain@go") {
		t.Errorf("it was made from %v", d)
	}
}
