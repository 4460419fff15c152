package program

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"runtime"
	"runtime/debug"
)

// Set when linking, with -ldflags "-X <this package>.version=... -X <this package>.commit=...". Without them, what the Go
// toolchain noted takes their place.
var version, commit string

// CommandVersion is "version" of the program of that name. It prints the version, the commit that the program was built
// from, and what it was built with.
func CommandVersion(name, usage string) func(context.Context, []string, Streams) error {
	return func(_ context.Context, args []string, to Streams) error {
		done, err := Parse(name+" version", usage, args, to, func(*flag.FlagSet) {})
		if done || err != nil {
			return err
		}
		v, c := BuildVersion()
		_, err = fmt.Fprintf(to.Out, "%s %s (commit %s, %s, %s/%s)\n", name, v, c, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		return err
	}
}

// BuildVersion returns the version and the commit of this program.
func BuildVersion() (string, string) {
	v, c := version, commit
	if info, ok := debug.ReadBuildInfo(); ok {
		v = cmp.Or(v, info.Main.Version)
		c = cmp.Or(c, builtFrom(info.Settings))
	}
	return cmp.Or(v, "unknown"), cmp.Or(c, "unknown")
}

// builtFrom returns the commit that the toolchain found, marked if there were changes that it did not hold.
func builtFrom(settings []debug.BuildSetting) string {
	var revision, changed string
	for _, s := range settings {
		switch s.Key {
		case "vcs.revision":
			revision = s.Value
		case "vcs.modified":
			if s.Value == "true" {
				changed = "+changes"
			}
		}
	}
	if revision == "" {
		return ""
	}
	return revision[:min(len(revision), 12)] + changed
}
