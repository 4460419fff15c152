//go:build !manual

package cli

import "github.com/spf13/cobra"

// addManual adds nothing: what writes the manual (manual.go) is not linked into a program that is installed.
func addManual(*cobra.Command) {}
