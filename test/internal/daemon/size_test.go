package daemon_test

import (
	"os"
	"testing"

	"github.com/nth-project/nth/test/internal/daemon"
)

// The linker leaves out the methods that nobody calls, unless one is looked up by a name that is only known at run time: a use of
// text/template, or of reflect's MethodByName, anywhere in what is linked makes a program of 36 MB one of more than 50.
func TestProgram_LeavesOutWhatNobodyCalls(t *testing.T) {
	const most = 38 << 20
	for name, build := range map[string]func() (string, error){"nth": daemon.Binary, "nth-queue": daemon.QueueBinary} {
		t.Run(name, func(t *testing.T) {
			binary, err := build()
			if err != nil {
				t.Fatal(err)
			}
			info, err := os.Stat(binary)
			if err != nil {
				t.Fatal(err)
			}
			if info.Size() > most {
				t.Errorf("%s has %d bytes, more than %d; \"go tool link -dumpdep\" shows who looks up methods by name", name, info.Size(), most)
			}
		})
	}
}
