// Package mutate judges tests: it changes the code that they test, one small piece at a time, and sees whether any test
// notices. A changed piece is a mutant; one that no test notices has survived, and is a line that could be wrong.
//
// To build a test binary for each mutant would take minutes for each, since most of it is client-go. So the package is
// rewritten once, with all its mutants in it, each behind a switch that is read from the environment (switch.go), and
// built once, over the untouched tree (go test -c -overlay). Without a mutant, its tests must pass, all together and each
// alone; that also shows which test reaches which mutants, and how long it takes. Then, for each mutant that is reached, the
// binary runs the tests that reach it, the quickest first, until one fails.
//
//   - load.go reads and type-checks a package, with nothing but the standard library.
//   - find.go walks over it, and mutants.go says what can be changed where.
//   - rewrite.go writes it anew, and leaves out what the type checker does not take.
//   - run.go builds and runs; verdict.go tells what came of it.
//   - entries.go reads the two lists that are written by hand: survivors.txt, survivors that are accepted, and
//     spared.txt, code that is not changed. Each entry has its reason below it.
package mutate

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"time"
)

// Config says what is to be judged, and how.
type Config struct {
	// Top is the project's top directory, and Packages are directories from there.
	Top      string
	Packages []string
	// Only, if set, is the one file, or the one line ("fold.go:31"), whose mutants are run. The rest is not judged then.
	Only string
	// Workers is how many mutants run at once.
	Workers int
	// Patience is how long tests may take with a mutant beyond five times what they take without; 0 means ten seconds.
	Patience time.Duration
	// Threshold is how many percent of the mutants must be noticed.
	Threshold float64
	// Survivors and Spared are the lists written by hand; "" is an empty one.
	Survivors, Spared string
	// List has the mutants listed, and none run.
	List bool
	// Out is told progress and verdict.
	Out io.Writer
}

// Run judges the tests of one package after the other. It returns false if those of one do not do: too few mutants are
// noticed, or the list of survivors is not what has survived. An error means that this could not be found out.
func Run(ctx context.Context, cfg Config) (bool, error) {
	accepted, err := readEntries(cfg.Survivors)
	if err != nil {
		return false, err
	}
	leftOut, err := readEntries(cfg.Spared)
	if err != nil {
		return false, err
	}
	good := true
	for _, dir := range cfg.Packages {
		dir = filepath.ToSlash(filepath.Clean(dir))
		judged, err := cfg.judge(ctx, dir, accepted, spared{leftOut})
		if err != nil {
			return false, fmt.Errorf("judging the tests of %s: %w", dir, err)
		}
		good = good && judged
	}
	return good, nil
}

func (cfg Config) judge(ctx context.Context, dir string, accepted entries, leftOut spared) (bool, error) {
	pkg, err := load(ctx, cfg.Top, dir)
	if err != nil {
		return false, err
	}
	all := find(pkg, leftOut)
	texts, all, err := rewrite(pkg, all)
	if err != nil {
		return false, err
	}
	chosen := choose(all, cfg.Only)
	if cfg.List {
		for _, m := range chosen {
			fmt.Fprintf(cfg.Out, "%s:%d\n    %s\n", m.file, m.line, m.key)
		}
		fmt.Fprintf(cfg.Out, "%s: %d mutants\n", dir, len(chosen))
		return true, nil
	}
	took, err := cfg.run(ctx, pkg, texts, chosen)
	if err != nil {
		return false, err
	}
	v := verdict{dir: dir, mutants: chosen, took: took, accepted: accepted, unmet: leftOut.unmet(pkg)}
	if cfg.Only == "" {
		v.whole, v.threshold = true, cfg.Threshold
	}
	return v.tell(cfg.Out), nil
}
