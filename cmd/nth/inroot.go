package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nth-project/nth/cmd/internal/program"
)

// inRoot is a command for nth's own use, and in no help: "nth in-root ROOT COMMAND [ARGUMENT]...". By it the kubeconfig's
// exec plugin is looked for and run where another root directory has what it is linked with and what it reads.
const inRoot = "in-root"

// commandInRoot becomes the command, below the root.
func commandInRoot(_ context.Context, args []string, _ program.Streams) error {
	if len(args) < 2 {
		return program.UsageError{Message: "nth " + inRoot + " ROOT COMMAND [ARGUMENT]..."}
	}
	root, command := args[0], args[1:]
	if err := unix.Chroot(root); err != nil {
		return fmt.Errorf("running %s in %s: changing the root directory: %w", command[0], root, err)
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("running %s in %s: %w", command[0], root, err)
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		return fmt.Errorf("running %s in %s: %w", command[0], root, err)
	}
	// Which authorities are to be trusted is said for the image that nth is in.
	environment := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "SSL_CERT_") })
	if err := unix.Exec(path, command, environment); err != nil {
		return fmt.Errorf("running %s in %s: %w", command[0], root, err)
	}
	return nil
}
