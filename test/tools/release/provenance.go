package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	slsa "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
)

// provenance writes what the files below a directory were made from, as an in-toto statement with the predicate SLSA Provenance 1.
// It is a statement, and proves nothing before it is signed.
func provenance(from origin, dir string, out io.Writer) error {
	if from.commit == "" || from.source == "" {
		return errUsage
	}
	subjects, err := checksums(dir)
	if err != nil {
		return err
	}
	parameters, err := structpb.NewStruct(map[string]any{"version": from.version, "SOURCE_DATE_EPOCH": fmt.Sprint(from.date.Unix())})
	if err != nil {
		return err
	}
	made := &slsa.Provenance{
		BuildDefinition: &slsa.BuildDefinition{
			BuildType: from.source + "/blob/main/docs/release.md", ExternalParameters: parameters,
			ResolvedDependencies: []*intoto.ResourceDescriptor{
				{Uri: "git+" + from.source + "@" + from.commit, Digest: map[string]string{"gitCommit": from.commit}},
				{Uri: "pkg:golang/toolchain@" + runtime.Version()},
			},
		},
		RunDetails: &slsa.RunDetails{Builder: &slsa.Builder{Id: from.source + "/blob/main/packaging/release"}},
	}
	if err := made.Validate(); err != nil {
		return fmt.Errorf("the provenance: %w", err)
	}
	predicate, err := asStruct(made)
	if err != nil {
		return err
	}
	statement := &intoto.Statement{
		Type: intoto.StatementTypeUri, Subject: subjects, PredicateType: "https://slsa.dev/provenance/v1", Predicate: predicate,
	}
	if err := statement.Validate(); err != nil {
		return fmt.Errorf("the statement: %w", err)
	}
	return write(statement, out)
}

func asStruct(p *slsa.Provenance) (*structpb.Struct, error) {
	text, err := protojson.Marshal(p)
	if err != nil {
		return nil, err
	}
	s := &structpb.Struct{}
	return s, protojson.Unmarshal(text, s)
}

// write writes a statement with the same bytes each time: protojson itself puts spaces where it likes.
func write(statement *intoto.Statement, out io.Writer) error {
	text, err := protojson.Marshal(statement)
	if err != nil {
		return err
	}
	var plain any
	if err := json.Unmarshal(text, &plain); err != nil {
		return err
	}
	writer := json.NewEncoder(out)
	writer.SetIndent("", "  ")
	return writer.Encode(plain)
}

// checksums are the files below a directory, by name.
func checksums(dir string) ([]*intoto.ResourceDescriptor, error) {
	var all []*intoto.ResourceDescriptor
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		sum := sha256.New()
		if _, err := io.Copy(sum, file); err != nil {
			return fmt.Errorf("reading %s: %w", path, err)
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		all = append(all, &intoto.ResourceDescriptor{Name: name, Digest: map[string]string{"sha256": fmt.Sprintf("%x", sum.Sum(nil))}})
		return nil
	})
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("there is no file in %s", dir)
	}
	return all, err
}
