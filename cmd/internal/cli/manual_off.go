//go:build !manual

package cli

import "github.com/spf13/cobra"

// addManual adds nothing. Only the build of the packages has the tag "manual", and with it the command of manual.go.
func addManual(*cobra.Command) {}
