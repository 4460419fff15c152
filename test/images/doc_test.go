// Package images_test judges what operators make node images with, as far as it can be judged without EC2: the user data
// in packaging/user-data, and the Packer templates in packaging/packer.
package images_test

import (
	"os"
	"path/filepath"
	"testing"
)

// packaging is where what is judged lies.
const packaging = "../../packaging"

func read(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(packaging, path))
	if err != nil {
		t.Fatal(err)
	}
	return content
}
