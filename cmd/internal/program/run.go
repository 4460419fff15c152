package program

import (
	"errors"
	"flag"
	"strconv"
)

// RunFlags are those of "run": the file with the settings, and whether they are a dry run whatever the file says.
type RunFlags struct {
	Config string
	dryRun *bool
}

// ParseRun reads the flags of "run" of the program of that name, as Parse does.
func ParseRun(name, usage string, args []string, to Streams) (flags RunFlags, done bool, err error) {
	done, err = Parse(name+" run", usage, args, to, func(set *flag.FlagSet) {
		ConfigFlag(set, &flags.Config)
		set.BoolFunc("dry-run", "", func(text string) error {
			dryRun, err := strconv.ParseBool(text)
			if err != nil {
				return errors.New("must be true or false")
			}
			flags.dryRun = &dryRun
			return nil
		})
	})
	return flags, done, err
}

// DryRun is what the flags make of the setting.
func (f RunFlags) DryRun(setting bool) bool {
	if f.dryRun != nil {
		return *f.dryRun
	}
	return setting
}
