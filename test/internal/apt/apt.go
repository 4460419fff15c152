// Package apt installs programs on this host from Debian's packages.
package apt

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
)

// installing keeps two tests from asking for the same packages at once.
var installing sync.Mutex

// Install installs those of the programs that the host lacks, each from the package that the map names, and tells of it
// before.
func Install(ctx context.Context, programs map[string]string, tell func(format string, args ...any)) error {
	installing.Lock()
	defer installing.Unlock()
	var missing []string
	for program, debian := range programs {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, debian)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	names := strings.Join(missing, ", ")
	tell("installing %s on this host", names)
	for _, args := range [][]string{{"update"}, append([]string{"install", "-y", "--no-install-recommends"}, missing...)} {
		// Another process may be at it.
		command := exec.CommandContext(ctx, "apt-get", append([]string{"-qq", "-o", "DPkg::Lock::Timeout=120"}, args...)...)
		command.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if said, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("installing %s: %w\n%s", names, err, bytes.TrimSpace(said))
		}
	}
	return nil
}
