package record_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nth-project/nth/pkg/record"
	"github.com/nth-project/nth/pkg/state"
)

// writerVariable turns this test binary into a writer that puts one entry after another and tells each when it is on
// disk, until it is killed.
const writerVariable = "NTH_TEST_RECORD_DIRECTORY"

func TestMain(m *testing.M) {
	if dir := os.Getenv(writerVariable); dir != "" {
		writeForever(dir)
	}
	os.Exit(m.Run())
}

func writeForever(dir string) {
	store, warnings := record.Open(dir, boot, noon)
	if len(warnings) > 0 {
		fmt.Println(warnings)
		os.Exit(1)
	}
	underway := make(chan struct{}, 8) // So that some are gathered into one write.
	for i := 0; ; i++ {
		underway <- struct{}{}
		store.Put(func(err error) {
			if err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
			fmt.Println(i)
			<-underway
		}, entry(fmt.Sprintf("event-%06d", i), state.Closed, noon.Add(time.Duration(i))))
	}
}

func TestAWriterKilledAtAnyMomentHasLostNothingThatItSaidToBeOnDisk(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for round := range 8 {
		dir := filepath.Join(t.TempDir(), "nth")
		writer := exec.Command(self)
		writer.Env = append(os.Environ(), writerVariable+"="+dir)
		said, err := writer.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := writer.Start(); err != nil {
			t.Fatal(err)
		}
		last := -1
		for lines := bufio.NewScanner(said); lines.Scan(); {
			n, err := strconv.Atoi(lines.Text())
			if err != nil {
				t.Fatalf("the writer says %q", lines.Text())
			}
			last = n
			if n == 3+5*round {
				_ = writer.Process.Kill() // The lines that are on their way are still read.
			}
		}
		_ = writer.Wait() // It was killed.
		want := fmt.Sprintf("event-%06d", last)
		if got := ids(open(t, dir).Entries()); last < 0 || !strings.Contains(got, want) {
			t.Errorf("round %d: the record holds %q, without %s", round, got, want)
		}
	}
}
