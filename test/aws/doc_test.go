// Package aws_test judges packaging/aws as far as it can be judged without AWS: that everything a template refers to is
// there, whatever the parameters are; that both templates make the same; and that what they allow is what nth-queue does.
// Neither CloudFormation nor Terraform's provider for AWS can be had here: the names of properties are not judged.
package aws_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// packaging is where what is judged lies.
const packaging = "../../packaging/aws"

func read(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(packaging, path))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// texts makes a list of strings of what JSON, YAML or HCL has as a string or a list of strings.
func texts(value any) []string {
	switch v := value.(type) {
	case string:
		return []string{v}
	case []any:
		var all []string
		for _, one := range v {
			all = append(all, texts(one)...)
		}
		return all
	}
	return nil
}

func sorted(texts []string) []string {
	texts = slices.Clone(texts)
	slices.Sort(texts)
	return texts
}
