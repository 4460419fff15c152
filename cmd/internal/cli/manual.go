//go:build manual

package cli

import (
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// addManual adds a hidden command, "manual NOTES OUTPUT". It writes a manual page for each command into the directory OUTPUT/man, and the completions
// of each shell into OUTPUT/completions. NOTES is a Markdown file: the description, and more sections, of the program's own page. packaging/build
// runs the command.
func addManual(root *cobra.Command) {
	root.AddCommand(&cobra.Command{Use: "manual", Hidden: true, Args: cobra.ExactArgs(2), RunE: func(_ *cobra.Command, args []string) error {
		return writeManual(root, args[0], args[1])
	}})
}

// writeManual writes the manual pages and the completions, as addManual describes them.
func writeManual(root *cobra.Command, notes, output string) error {
	more, err := os.ReadFile(notes)
	if err != nil {
		return err
	}
	for _, dir := range []string{output + "/man", output + "/completions"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	const descriptions = true
	name := output + "/completions/" + root.Name()
	for _, write := range []func() error{
		func() error { return root.GenBashCompletionFileV2(name+".bash", descriptions) },
		func() error { return root.GenZshCompletionFile(name + ".zsh") },
		func() error { return root.GenFishCompletionFile(name+".fish", descriptions) },
	} {
		if err := write(); err != nil {
			return err
		}
	}
	root.Long = string(more)
	root.DisableAutoGenTag = true
	return doc.GenManTree(root, &doc.GenManHeader{Section: "8", Source: root.Name(), Manual: "System Administration"}, output+"/man")
}
