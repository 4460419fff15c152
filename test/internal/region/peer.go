package region

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"regexp"
	"sync"

	"github.com/nth-project/nth/test/internal/lab"
	"github.com/nth-project/nth/test/tools"
)

// peer returns the address of the fauxqs of this process, whose queues do not know each other.
var peer = sync.OnceValues(startPeer)

// startPeer fetches fauxqs if it is not there, starts it, and waits until it listens. It ends with this process.
func startPeer() (url string, err error) {
	if err := tools.Build(context.Background(), os.Stderr, "fauxqs"); err != nil {
		return "", err
	}
	node, err := tools.Path("node")
	if err != nil {
		return "", err
	}
	program, err := tools.Path("fauxqs")
	if err != nil {
		return "", err
	}
	command := exec.Command(node, "--no-warnings", program)
	command.Env = append(os.Environ(), "FAUXQS_PORT=0", "FAUXQS_DEFAULT_REGION="+Name)
	said, err := command.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := lab.StartBound(command, func(error) {}); err != nil {
		return "", err
	}
	lines := bufio.NewScanner(said)
	for lines.Scan() {
		if found := listening.FindSubmatch(lines.Bytes()); found != nil {
			go func() { _, _ = io.Copy(io.Discard, said) }() // it goes on to tell of each request
			return string(found[1]), nil
		}
	}
	return "", errors.Join(errors.New("fauxqs ended before it listened"), lines.Err())
}

var listening = regexp.MustCompile(`Server listening at (http://127\.0\.0\.1:\d+)`)
