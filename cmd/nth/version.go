package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"runtime"
	"runtime/debug"
)

// Set when linking, with -ldflags "-X main.version=... -X main.commit=...". Without them, what the Go toolchain noted
// takes their place.
var version, commit string

// commandVersion is "nth version".
func commandVersion(_ context.Context, args []string, to streams) error {
	done, err := parse("version", versionUsage, args, to, func(*flag.FlagSet) {})
	if done || err != nil {
		return err
	}
	v, c := buildVersion()
	_, err = fmt.Fprintf(to.out, "nth %s (commit %s, %s, %s/%s)\n", v, c, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}

// buildVersion returns the version and the commit of this program.
func buildVersion() (string, string) {
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
